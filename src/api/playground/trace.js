// The way a passage was found, in words.
function pathOf({ bm25, dense, graph }) {
  const parts = [];
  if (bm25) parts.push("bm25 #" + bm25.rank + " (" + round(bm25.score) + ")");
  if (dense) parts.push("dense #" + dense.rank + " (" + round(dense.score) + ")");
  if (graph) {
    const via = (graph.via || []).map((edge) => edge.phrase + " \u2192 ").join("");
    parts.push("graph #" + graph.rank + " (" + round(graph.mass) + ")" + (via ? ": " + via + "this passage" : ""));
  }
  return parts.join(" \u00b7 ");
}

function hitOf(hit, search) {
  const { title, text, id } = hit.passage;
  const item = element("li");
  const details = element("details");
  details.append(element("summary", "", title || id));
  details.append(element("p", "text", text));
  item.append(details, element("div", "path", [round(hit.score), pathOf(hit.path)].filter(Boolean).join(" \u00b7 ")));
  return { hit, name: search + "." + hit.rank, id, title: title || id, item, details };
}

// The passages that the server cites for the answer, each once: its rule is one that anybody can check.
function cite(citations, shown, into) {
  const cited = new Set(citations.map((citation) => citation.passage));
  for (const { node } of shown.filter((one) => cited.has(one.id))) node.classList.add("cited");
  const holding = [...cited].map((id) => shown.find((one) => one.id === id)).filter(Boolean);
  if (!holding.length) return;
  const list = element("div", "usage", "Its words stand in ");
  holding.forEach((one, index) => {
    one.item.classList.add("cited");
    const button = element("button", "", "[" + one.name + "] " + one.title);
    button.type = "button";
    button.addEventListener("click", () => reveal(one));
    list.append(index ? " " : "", button);
  });
  into.append(list);
}

// What is shown of one episode while it runs, or of one that was saved.
function viewer() {
  const shown = [];
  let open = null;
  let search = null;
  let searches = 0;
  const write = (kind, title, text) => {
    if (!open || open.kind !== kind) {
      const made = step(kind, title);
      const body = element("p");
      made.append(body);
      open = { kind, made, body };
    }
    open.body.append(text);
    return open;
  };
  const note = (kind, title, text) => {
    open = null;
    if (text !== undefined) step(kind, title).append(element("p", "", text));
    else step(kind, title);
  };
  const look = (title, query) => {
    open = null;
    return { title, into: step("search", title), figure: sketch(title, query) };
  };
  let answered = null;
  const show = {
    started: (event) => note("", event.model + " (" + event.protocol + "), " + event.prompt_tokens + " tokens of prompt"),
    turn_started: () => { open = null; },
    think: (event) => write("think", "thinks", event.text),
    query: (event) => write("query", "asks for", event.text),
    text: (event) => { if (event.text.trim() || (open && open.kind === "text")) write("text", "writes", event.text); },
    answer: (event) => { answered = write("answer", "answers", event.text); },
    refusal: (event) => note("answer", "refuses to answer", event.text),
    withdrawn: (event) => note("", "withdraws the search of turn " + event.search + ": " + event.query),
    search_started: (event) => {
      searches += 1;
      search = look("search " + searches + " [" + event.mode + ", " + event.k + "]: " + event.query, event.query);
    },
    search_finished: (event) => {
      const { title, into, figure } = search || look("search [" + event.mode + "]: " + event.query, event.query);
      search = null;
      const facts = [event.cached ? "from this episode" : round(event.milliseconds) + " ms"];
      if (event.snapshot !== null) facts.push("snapshot " + event.snapshot);
      if (event.neutralised) facts.push(event.neutralised + " tags made harmless");
      if (event.error) facts.push("failed: " + event.error);
      into.append(element("div", "path", facts.join(" \u00b7 ")));
      const list = element("ol");
      const found = event.hits.map((hit) => hitOf(hit, searches));
      list.append(...found.map((one) => one.item));
      shown.push(...found);
      for (const triple of event.triples || []) {
        list.append(element("li", "", [triple.subject, triple.relation, triple.object].join(" \u00b7 ")));
      }
      into.append(list);
      draw(figure, title + " \u00b7 " + (found.length || "no") + (found.length === 1 ? " passage" : " passages"), event.query, found);
    },
    observation: (event) => note("", "is shown " + event.tokens + " tokens" + (event.truncated ? ", cut" : "")),
    invalid: (event) => note("failed", "turn " + event.turn + " asked for nothing the protocol knows", event.message),
    budget: (event) => note("", "reached the bound of " + event.kind),
    finished: (event) => {
      open = null;
      if (!answered && event.answer) answered = write("answer", "answers", event.answer);
      if (answered) cite(event.citations, shown, answered.made);
      const { usage } = event;
      note("usage", "ended by " + event.reason + ": " + event.turns + " turns, " + event.searches + " searches, "
        + usage.completion_tokens + " tokens written, " + (usage.prompt_tokens + usage.environment_tokens) + " read");
    },
    failed: (event) => note("failed", "failed", event.message),
    error: ({ error }) => note("failed", "failed", error.message),
  };
  return (event) => {
    const kind = event.error && event.type === undefined ? "error" : event.type;
    if (Object.hasOwn(show, kind)) show[kind](event);
    else if (kind) note("", kind.replaceAll("_", " "));
  };
}
