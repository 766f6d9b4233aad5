function headers() {
  const key = field("key").value.trim();
  return key ? { authorization: "Bearer " + key } : {};
}

async function refusal(response) {
  let message = "status " + response.status;
  try {
    const { error } = await response.json();
    message = error.message + (error.code ? " (" + error.code + ")" : "");
  } catch { /* No JSON: the status has to do. */ }
  const request = response.headers.get("x-request-id");
  return message + (request ? ", request " + request : "");
}

async function listPolicies() {
  const select = field("model");
  const chosen = select.value;
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) return;
  const policies = (await response.json()).data.filter((model) => model.protocol !== "embedding");
  select.replaceChildren(...policies.map((model) => {
    const option = element("option", "", model.id);
    option.value = model.id;
    option.dataset.protocol = model.protocol;
    return option;
  }));
  // A policy that searches shows more than one that only talks.
  const searching = policies.find((model) => model.protocol !== "plain");
  const known = policies.some((model) => model.id === chosen);
  if (known) select.value = chosen;
  else if (searching) select.value = searching.id;
  offerSearch();
}

// The built-in policy that only talks is told nothing about searching: it would refuse it.
function canSearch() {
  const chosen = field("model").selectedOptions[0];
  return !chosen || chosen.dataset.protocol !== "plain";
}

function offerSearch() {
  for (const id of ["mode", "k"]) field(id).disabled = !canSearch();
}

// Server-sent events: messages of lines, ended by an empty one; comments begin with a colon.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  let data = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (data.length) yield JSON.parse(data.join("\n"));
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
      }
    }
  }
}

async function ask() {
  const question = field("question").value.trim();
  if (!question) return;
  const rag = {};
  if (canSearch() && field("mode").value) rag.mode = field("mode").value;
  if (canSearch() && field("k").value) rag.k = Number(field("k").value);
  const body = { question, stream: true, rag };
  if (field("model").value) body.model = field("model").value;
  await watch(async (show, signal) => {
    const response = await fetch("/v1/agent", {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify(body),
      signal,
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const event of events(response.body)) show(event);
  });
}

field("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
field("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
field("stop").addEventListener("click", stop);
field("model").addEventListener("change", offerSearch);
field("key").addEventListener("change", () => listPolicies().catch(() => {}));
// A copy of this page on a disk has no server to ask: it shows runs that were saved.
if (location.protocol === "file:") field("form").hidden = true;
else listPolicies().catch(() => {});
