// The page in a real browser, against a server that plays its part.
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { EPISODE, FOLLOW_UP, INDEX, PASSAGES, QUESTION, WALK, WALKED, finished, hit, routes, search, server, started } from "./fixtures.mjs";
import { DESKTOP, PHONE, WIDE, accessible, ask, begin, close, end, eventually, fits, foreign, kept, look, open, picture } from "./harness.mjs";
import { error, json, never, pause, stream } from "./server.mjs";

before(begin);
after(end);

const SCREENS = [
  { name: "desktop", size: DESKTOP, scheme: "light" }, { name: "desktop-dark", size: DESKTOP, scheme: "dark" },
  { name: "phone", size: PHONE, scheme: "light" }, { name: "phone-dark", size: PHONE, scheme: "dark" },
];

for (const { name, size, scheme } of SCREENS) {
  test("the first screen says what this is, " + name, async (t) => {
    const { url } = await server(t);
    const page = await open(url, { size, scheme });
    await page.waitForSelector(".examples");
    const text = await page.textContent("main");
    for (const part of ["Answers you can retrace", INDEX.passages + " passages", INDEX.graph.facts.toLocaleString("en-US") + " facts", QUESTION]) assert.ok(text.includes(part), part);
    assert.equal(await page.inputValue("#model"), "routerag-smollm2", "the trained policy, not a built-in one");
    await accessible(page);
    await fits(page);
    await look(page, "first-" + name);
    await close(page);
  });

  test("an answer stands first, with its sources, its way and its steps, " + name, async (t) => {
    const { url, seen } = await server(t);
    const page = await open(url, { size, scheme });
    await ask(page, QUESTION);
    assert.equal((await page.textContent(".answer p")).replace(/\d/g, ""), "Salzburg");
    const { y, height } = await page.locator(".answer").boundingBox();
    assert.ok(y + height < size.height / 2, "the answer stands in the upper half of the screen");
    assert.equal(await page.textContent(".hops"), "Don Giovanni→ composed by →Wolfgang Amadeus Mozart→ born in →Salzburg");
    assert.equal(await page.textContent(".source mark"), "Salzburg");
    const request = JSON.parse(seen.find((one) => one.path === "/v1/agent").body);
    assert.deepEqual(request, { question: QUESTION, stream: true, rag: {}, model: "routerag-smollm2", resumable: true });
    await drawn(page, size);
    await accessible(page);
    await fits(page);
    await picture(page, { desktop: "page-ask", "phone-dark": "page-phone-dark", "desktop-dark": "page-ask-dark", phone: "page-phone" }[name]);
    await page.click(".steps > summary");
    const steps = await page.textContent(".timeline");
    assert.ok(steps.includes("First I need to find the composer") && steps.includes("Searched for “Don Giovanni” by words and meaning"), steps);
    for (const jargon of ["is shown", "ended by", "stand in", "harmless", "budget"]) assert.ok(!steps.includes(jargon), jargon);
    assert.equal(await page.evaluate(() => document.querySelector(".thought").textContent[0]), "F", "no stray space");
    await accessible(page);
    await look(page, "steps-" + name, true);
    await close(page);
  });

  test("the other views, " + name, async (t) => {
    const { url } = await server(t);
    const page = await open(url, { size, scheme });
    await compare(page);
    await accessible(page);
    await fits(page);
    await look(page, "compare-" + name, true);
    await explore(page);
    await accessible(page);
    await fits(page);
    if (name === "desktop") await picture(page, "page-explore");
    else await look(page, "explore-" + name, true);
    await page.click("text=Documents");
    await page.waitForSelector(".document-list li");
    await accessible(page);
    await look(page, "documents-" + name);
    await page.click("nav >> text=Operate");
    await page.waitForSelector(".chart .line", { state: "attached" });
    assert.ok((await page.textContent(".operate")).includes("parked in a search"));
    await accessible(page);
    await fits(page);
    await look(page, "operate-" + name);
    await close(page);
  });
}

// Every node has its place on the screen and every line runs between two of them.
async function drawn(page, size) {
  const graph = await page.evaluate(() => {
    const box = document.querySelector(".path").getBoundingClientRect();
    const nodes = [...document.querySelectorAll(".node")].map((node) => ({ text: node.querySelector("bdi").textContent, lit: node.classList.contains("lit"), at: node.getBoundingClientRect() }));
    return {
      inside: nodes.every(({ at }) => at.left >= box.left && at.right <= box.right + 1 && at.height > 0),
      lit: nodes.filter((one) => one.lit).map((one) => one.text),
      texts: nodes.map((one) => one.text),
      edges: document.querySelectorAll(".edge").length,
      across: document.querySelector(".path").classList.contains("across"),
    };
  });
  assert.ok(graph.inside, "a node lies outside of the drawing");
  assert.deepEqual(graph.lit, ["Don Giovanni", "Don Giovanni", "Wolfgang Amadeus Mozart", "Wolfgang Amadeus Mozart", "Salzburg"]);
  assert.deepEqual(graph.texts.filter((text) => text === "Wolfgang Amadeus Mozart").length, 2, "one query, one passage");
  // On a phone a passage hangs on one search alone.
  assert.equal(graph.edges, size === PHONE ? 7 : 8);
  assert.equal(graph.across, size !== PHONE);
}

async function compare(page) {
  await page.click("nav >> text=Compare");
  await page.fill("#compared", QUESTION);
  await page.press("#compared", "Enter");
  await page.waitForSelector(".figures table");
  assert.ok((await page.textContent(".figures")).includes("Both give the same answer."));
  assert.equal(await page.locator(".half .answer").count(), 2);
}

async function explore(page) {
  await page.click("nav >> text=Explore");
  await page.waitForSelector(".drawing canvas");
  await page.waitForSelector(".neighbors");
  await page.fill("#find", "moz");
  await page.click(".matches button >> nth=0");
  await page.waitForFunction(() => document.querySelector(".panel h2")?.textContent === "Wolfgang Amadeus Mozart");
  assert.ok((await page.textContent(".panel")).includes("born in Salzburg"));
  await page.waitForFunction(() => /Graph with \d+ points/.test(document.querySelector(".drawing").getAttribute("aria-label")));
}

test("a citation shows its passage by pointer and by keyboard, and what the answer is without it", async (t) => {
  const { url, seen } = await server(t);
  const page = await open(url);
  await ask(page, QUESTION);
  await page.hover(".citation");
  await page.waitForSelector(".card");
  assert.equal(await page.textContent(".card mark"), "Salzburg");
  await page.mouse.move(5, 5);
  await page.waitForSelector(".card", { state: "detached" });
  await page.focus(".citation");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".card");
  await page.waitForFunction(() => document.activeElement?.id === "card");
  assert.ok((await page.textContent(".card")).includes("Search 2 for “Wolfgang Amadeus Mozart” found it 1st of 3"));
  await page.click("text=Answer without this passage");
  await page.waitForSelector(".card ins");
  assert.equal(await page.textContent(".card ins"), "Rohrau");
  const replay = seen.find((one) => one.path.endsWith("/replay"));
  assert.deepEqual(JSON.parse(replay.body), { mode: "free", without: [PASSAGES.mozart.id] });
  await accessible(page);
  await look(page, "card");
  await page.keyboard.press("Escape");
  await page.waitForSelector(".card", { state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement.className), "citation");
  await close(page);
});

test("a follow-up goes on with the conversation, and all of it is there after a reload", async (t) => {
  const { url, seen } = await server(t, {
    "POST /v1/agent": ({ response, body }) => (body.history ? stream(response, FOLLOW_UP, { id: "ep-2" }) : stream(response, EPISODE)),
  });
  const page = await open(url);
  await ask(page, QUESTION);
  await ask(page, "In which country is that?");
  await page.waitForFunction(() => document.querySelectorAll(".answered").length === 2 && /Austria/.test(document.querySelectorAll(".answer")[1]?.textContent));
  const asked = seen.filter((one) => one.method === "POST").map((one) => ({ path: one.path, ...JSON.parse(one.body) }));
  assert.deepEqual(asked.map(({ path, question, history, resumable }) => ({ path, question, history, resumable })), [
    { path: "/v1/agent", question: QUESTION, history: undefined, resumable: true },
    { path: "/v1/agent", question: "In which country is that?", history: [{ role: "user", content: QUESTION }, { role: "assistant", content: "Salzburg" }], resumable: true },
  ]);
  await page.waitForSelector(".answered:nth-child(2) .source");
  await page.click(".answered:nth-child(2) .steps > summary");
  assert.deepEqual(await page.locator(".answered:nth-child(2) .thought").allTextContents(), ["I look for the country.", "It is Austria."]);
  const { y } = await page.locator(".answered:nth-child(2) .question").boundingBox();
  assert.ok(y < 120, "the youngest question stands at the top: " + y);
  await look(page, "follow-up");
  await page.click(".answered:nth-child(2) [aria-label='Good answer']");
  await kept(page, ({ runs }) => runs[1]?.feedback === "good");
  await page.reload();
  await page.waitForSelector(".answered:nth-child(2) .source");
  assert.equal(await page.getAttribute(".answered:nth-child(2) [aria-label='Good answer']", "aria-pressed"), "true");
  assert.deepEqual(await page.locator("#history li a").allTextContents(), [QUESTION]);
  await page.click("text=New question");
  await page.waitForSelector(".welcome");
  await page.click("#history li a");
  await page.waitForSelector(".answered:nth-child(2)");
  await page.click("#history li [aria-label^='Forget']");
  await page.waitForSelector("#history li", { state: "detached" });
  await close(page);
});

test("a run that the server keeps is shown with its sources and replayed", async (t) => {
  const trace = {
    id: "ep-1", created: 1795439382, status: "finished", model: "routerag-smollm2", protocol: "routerag", error: null, answer: " Salzburg", finish_reason: "stop",
    messages: [{ role: "user", content: "Who?" }, { role: "assistant", content: "Mozart" }, { role: "user", content: QUESTION }],
    options: { mode: null, k: null }, usage: { prompt_tokens: 9, completion_tokens: 8, environment_tokens: 7, searches: 1, search_ms: 2 }, timings: { total: 1.25 },
    actions: [{ turn: 1, thought: " First I look. ", action: { type: "search" } }, { turn: 2, thought: " Doc 1 says so. ", action: { type: "answer", text: "Salzburg" } }],
    searches: [{ turn: 1, query: "Mozart", mode: "passage", snapshot: 1, hits: [hit(1, PASSAGES.mozart), hit(2, PASSAGES.haydn)], triples: [], cached: false, neutralised: 0, seconds: 0.002, error: null, withdrawn: null }],
  };
  const { url } = await server(t, {
    "GET /v1/traces": ({ response }) => json(response, { object: "list", data: [{ id: "ep-1", question: QUESTION, model: "routerag-smollm2", created: 1795439382 }], has_more: false }),
    "GET /v1/traces/ep-1": ({ response }) => json(response, trace),
  });
  const page = await open(url);
  await page.waitForSelector(".examples");
  await page.click("text=On this server");
  await page.click(".on-server li button");
  await page.waitForSelector(".citation");
  assert.equal(await page.textContent(".question"), QUESTION);
  assert.deepEqual(await page.locator(".source mark").allTextContents(), ["Salzburg"]);
  assert.deepEqual(await page.locator(".node.lit bdi").allTextContents(), ["Mozart", "Wolfgang Amadeus Mozart", "Salzburg"]);
  await page.click(".steps > summary");
  assert.deepEqual(await page.locator(".thought").allTextContents(), ["First I look.", "Doc 1 says so."]);
  await page.click(".citation");
  await page.click("text=Answer without this passage");
  await page.waitForSelector(".card ins");
  await accessible(page);
  await look(page, "on-server");
  await close(page);
});

test("a run that ends with a call of a tool shows the call, live and kept", async (t) => {
  const call = { name: "look", arguments: '{"where":"<b>Salzburg</b>"}' };
  const trace = {
    id: "ep-1", created: 1795439382, status: "finished", model: "routerag-smollm2", protocol: "routerag", error: null, answer: null, finish_reason: "called",
    messages: [{ role: "user", content: QUESTION }], options: { mode: null, k: null }, usage: { prompt_tokens: 9, completion_tokens: 8, environment_tokens: 0, searches: 0, search_ms: 0 },
    timings: { total: 1.25 }, searches: [],
    actions: [{ turn: 1, thought: " I look. ", action: { type: "search" } }, { turn: 2, thought: "", action: { type: "call", ...call } }],
  };
  const { url } = await server(t, {
    "POST /v1/agent": ({ response }) => stream(response, [
      started(QUESTION), { type: "turn_started", turn: 1 }, { type: "tool_call", turn: 1, ...call }, finished(null, [], { reason: "called" }),
    ]),
    "GET /v1/traces": ({ response }) => json(response, { object: "list", data: [{ id: "ep-1", question: QUESTION, model: "routerag-smollm2", created: 1795439382 }], has_more: false }),
    "GET /v1/traces/ep-1": ({ response }) => json(response, trace),
  });
  const page = await open(url);
  await page.waitForSelector(".examples");
  await ask(page, QUESTION);
  const shown = async () => {
    assert.ok((await page.textContent(".notice")).includes("called a tool of its client in place of an answer"));
    await page.click(".steps > summary");
    assert.deepEqual(await page.locator(".note.call").allTextContents(), ["It called the tool “look” of its client with " + call.arguments + "."]);
  };
  await shown();
  await page.click("text=On this server");
  await page.click(".on-server li button");
  await page.waitForFunction(() => /I look/.test(document.querySelector(".timeline")?.textContent ?? ""));
  await shown();
  await close(page);
});

test("a run is stopped and asked again", async (t) => {
  let asked = 0;
  const { url, seen } = await server(t, {
    "POST /v1/agent": ({ response }) => { asked += 1; return stream(response, asked === 1 ? [...EPISODE.slice(0, 9), never] : EPISODE); },
    "DELETE /v1/agent/ep-1": ({ response }) => response.writeHead(204).end(),
  });
  const page = await open(url);
  await page.fill("#question", QUESTION);
  await page.press("#question", "Enter");
  await page.waitForSelector(".node.passage");
  assert.ok(/Reading|Thinking/.test(await page.textContent(".doing")));
  await look(page, "live");
  // Escape elsewhere is meant for something else.
  await page.click("nav >> text=Explore");
  await page.keyboard.press("Escape");
  await page.click("nav >> text=Ask");
  await page.waitForSelector(".doing");
  await page.keyboard.press("Escape");
  await page.waitForSelector("text=You stopped this answer");
  const stops = () => seen.filter((one) => one.method === "DELETE" && one.path.startsWith("/v1/agent/")).length;
  await eventually(stops);
  assert.equal(stops(), 1);
  await page.click("text=Retry");
  await page.waitForSelector(".citation");
  assert.equal(await page.locator(".answered").count(), 1);
  await close(page);
});

test("a run is shared as a link and as a page that needs no server, question included", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await ask(page, QUESTION);
  await page.click("text=Share");
  await page.click("text=Copy link");
  await page.waitForSelector(".toast.shown");
  const link = await page.evaluate(() => navigator.clipboard.readText());
  const other = await open(link);
  await other.waitForSelector(".citation");
  assert.equal(await other.textContent(".question"), QUESTION);
  assert.equal(await other.textContent(".hops"), "Don Giovanni→ composed by →Wolfgang Amadeus Mozart→ born in →Salzburg");
  await close(other);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Save as a page")]);
  assert.equal(download.suggestedFilename(), "waymark-where-was-the-composer-of-don-giovanni-born.html");
  const path = join(tmpdir(), "waymark-page-" + process.pid + ".html");
  await download.saveAs(path);
  t.after(() => rmSync(path, { force: true }));
  const saved = await open("file://" + path);
  await saved.waitForSelector(".citation");
  assert.equal(await saved.textContent(".question"), QUESTION);
  assert.equal(await saved.locator(".edge").count(), 8);
  await saved.click(".citation");
  assert.equal(await saved.textContent(".card mark"), "Salzburg");
  await accessible(saved);
  await look(saved, "saved");
  await close(saved);
  // The same file is opened by the page of any server.
  await page.setInputFiles("#file", path);
  await page.waitForFunction(() => !document.querySelector("[aria-label='Good answer']"));
  assert.equal(await page.textContent(".question"), QUESTION);
  await close(page);
});

test("a run of `waymark ask --json` is opened, and a damaged one is refused in words", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  const lines = EPISODE.map((event) => JSON.stringify(event)).join("\n");
  await page.setInputFiles("#file", { name: "run.jsonl", mimeType: "text/plain", buffer: Buffer.from(lines) });
  await page.waitForSelector(".citation");
  assert.equal(await page.textContent(".question"), QUESTION);
  await page.setInputFiles("#file", { name: "run.jsonl", mimeType: "text/plain", buffer: Buffer.from(lines.split("\n")[0] + "\n<b>no event</b>\n") });
  await page.waitForFunction(() => document.querySelector(".toast").textContent.includes("line 2"));
  await close(page);
});

test("a stream that breaks is taken up again where it ended", async (t) => {
  const taken = [];
  let page = null;
  const { url } = await server(t, {
    // A browser drops what it has not read when a connection breaks.
    "POST /v1/agent": ({ response }) => stream(response, [...EPISODE.slice(0, 7), () => page.waitForSelector(".node.passage"), "break"]),
    "GET /v1/agent/ep-1": ({ response, query }) => { taken.push(query.get("after")); return stream(response, EPISODE, { from: Number(query.get("after")) }); },
  });
  page = await open(url);
  await ask(page, QUESTION);
  assert.equal((await page.textContent(".answer p")).replace(/\d/g, ""), "Salzburg");
  assert.deepEqual(taken, ["7"]);
  await close(page);
});

test("a server that dies in the middle of an answer is told, and what came stays", async (t) => {
  let page = null;
  const { url } = await server(t, {
    "POST /v1/agent": ({ response }) => stream(response, [...EPISODE.slice(0, 14), () => page.waitForSelector("text=Joseph Haydn"), "break"]),
    "GET /v1/agent/ep-1": ({ response }) => error(response, 404, "not_found", "there is no stream"),
  });
  page = await open(url);
  await ask(page, QUESTION);
  assert.ok((await page.textContent(".notice.bad")).includes("The connection to the server was lost"));
  assert.ok(await page.locator(".node.passage").count() > 2);
  await accessible(page);
  await look(page, "died");
  await close(page);
});

test("a page without a connection says so, and goes on when there is one", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await page.waitForSelector(".examples");
  await page.context().setOffline(true);
  await page.waitForSelector("text=This device is offline");
  await ask(page, QUESTION);
  assert.ok((await page.textContent(".answered")).includes("This device is offline."));
  await look(page, "offline");
  await page.context().setOffline(false);
  await page.click("text=Retry");
  await page.waitForSelector(".citation");
  await close(page);
});

test("a key is asked for when the server wants one, and kept nowhere", async (t) => {
  const guarded = (answer) => (all) => (all.request.headers.authorization === "Bearer secret" ? answer(all) : error(all.response, 401, "invalid_api_key", "no key"));
  const all = Object.fromEntries(Object.entries(routes()).map(([name, route]) => [name, guarded(route)]));
  const { url } = await server(t, all);
  const page = await open(url, { size: PHONE, scheme: "dark" });
  await page.waitForSelector("#key");
  assert.ok(!(await page.textContent("main")).includes("refuses to say"));
  await accessible(page);
  await look(page, "key-phone-dark");
  await page.fill("#key", "wrong");
  await page.click("text=Use key");
  await page.waitForSelector("text=does not know this key");
  await page.fill("#key", "secret");
  await page.click("text=Use key");
  await page.waitForSelector(".examples");
  await ask(page, QUESTION);
  await page.waitForSelector(".citation");
  const kept = await page.evaluate(async () => {
    const base = await new Promise((resolve) => { const opening = indexedDB.open("waymark"); opening.onsuccess = () => resolve(opening.result); });
    const all = await new Promise((resolve) => { const asking = base.transaction("conversations").objectStore("conversations").getAll(); asking.onsuccess = () => resolve(asking.result); });
    return JSON.stringify([all, { ...localStorage }, { ...sessionStorage }, document.cookie, location.href]);
  });
  assert.ok(kept.includes("Salzburg") && !kept.includes("secret"));
  await close(page);
});

test("a server without an index says what to do, and offers the policy that can answer", async (t) => {
  const none = ({ response }) => error(response, 400, "not_configured", "this server has no index");
  const { url, seen } = await server(t, { "GET /v1/index": none, "GET /v1/index/questions": none, "GET /v1/documents": none, "POST /v1/agent": ({ response }) => stream(response, [started("Hello", "ep-2"), { type: "turn_started", turn: 1 }, { type: "answer", text: "Hello." }, finished("Hello.", [], { searches: 0 })]) });
  const page = await open(url);
  await page.waitForSelector("text=Nothing is indexed yet.");
  assert.ok((await page.textContent(".notice")).includes("waymark index build"));
  assert.equal(await page.inputValue("#model"), "plain");
  await accessible(page);
  await look(page, "no-index");
  await ask(page, "Hello");
  assert.deepEqual(JSON.parse(seen.find((one) => one.path === "/v1/agent").body).rag, {});
  assert.equal(await page.locator(".see").count(), 0);
  await page.click("nav >> text=Explore");
  await page.waitForSelector("text=This server has no index.");
  await close(page);
});

test("what a passage or an answer says is text and nothing else", async (t) => {
  const evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
  const passage = { id: "<b>id</b>", title: "<b>Faust</b>" + evil, text: evil + " Goethe wrote it. \uE2001\uE201" };
  const answer = "Goethe " + evil + " [x](javascript:alert(1)) ![y](http://elsewhere.invalid/z.png) <b>bold</b> \uE2009\uE201 &lt;i&gt;";
  const hits = [hit(1, passage, { graph: { rank: 1, mass: 0.25, reset: 0.5, via: [{ phrase: "<i>goethe</i>", weight: 1 }] } })];
  const { url } = await server(t, {
    "POST /v1/agent": ({ response }) => stream(response, [
      started("Who <u>wrote</u> it?"), { type: "turn_started", turn: 1 }, { type: "think", turn: 1, text: evil }, { type: "query", turn: 1, text: " [graph] <em>Faust</em>" },
      ...search(1, "<em>Faust</em>", "graph", hits),
      { type: "answer", text: answer }, finished(answer, [{ start: 0, end: 6, passage: passage.id, title: passage.title, stated: true }]),
    ]),
    "POST /v1/search": ({ response }) => json(response, { snapshot: 1, hits, walk: { facts: [{ subject: "<i>goethe</i>", relation: evil, object: "faust", kept: true }], phrases: [] } }),
  });
  const page = await open(url);
  await ask(page, "Who <u>wrote</u> it?");
  await page.click(".steps > summary");
  await page.click(".citation");
  assert.equal(await page.title(), "Waymark");
  assert.equal(await foreign(page, "main :is(img, script, u, b, i, iframe, object)"), 0);
  assert.equal(await foreign(page, ".answer a"), 0);
  assert.ok((await page.textContent(".answer")).includes(evil) && (await page.textContent(".answer")).includes("<i>"));
  assert.equal(await page.locator(".answer .citation").count(), 1, "an answer cannot write a citation");
  await close(page);
});

test("a search in another mode than the policy asked for is told as it was", async (t) => {
  const { url, seen } = await server(t, {
    "POST /v1/agent": ({ response }) => stream(response, [
      started(QUESTION), { type: "turn_started", turn: 1 }, { type: "query", turn: 1, text: "[passage] Don Giovanni" }, ...search(1, "Don Giovanni", "graph", WALKED),
      { type: "turn_started", turn: 2 }, { type: "query", turn: 2, text: "[passage] Don Giovanni" },
      ...search(2, "Don Giovanni", "graph", [hit(1, PASSAGES.giovanni), hit(2, PASSAGES.mozart)], { cached: true, cut: { left_out: 3, limit: 8000 } }),
      { type: "budget", kind: "turns" }, { type: "answer", text: "Salzburg" }, finished("Salzburg", [{ start: 0, end: 8, passage: PASSAGES.mozart.id, title: "", stated: true }]),
    ]),
    "POST /v1/search": ({ response }) => json(response, { snapshot: 1, hits: WALKED, walk: WALK }),
  });
  const page = await open(url);
  await page.waitForSelector(".examples");
  await page.selectOption("#mode", "graph");
  await page.fill("#k", "2");
  await ask(page, QUESTION);
  assert.deepEqual(JSON.parse(seen.find((one) => one.path === "/v1/agent").body).rag, { mode: "graph", k: 2 });
  assert.equal(await page.locator(".node.query").count(), 1, "the same search is drawn once");
  assert.ok((await page.textContent(".node.query")).includes("asked 2 times"));
  assert.deepEqual(await page.locator(".node.phrase bdi").allTextContents(), ["don giovanni", "mozart"]);
  assert.deepEqual(await page.locator(".node.fact bdi").allTextContents(), ["don giovanni composed by mozart"]);
  await look(page, "graph-mode");
  await page.click(".steps > summary");
  const steps = await page.textContent(".timeline");
  assert.ok(steps.includes("Searched for “Don Giovanni” along the graph") && steps.includes("had asked for a search by words and meaning"), steps);
  assert.ok(steps.includes("3 more results read, but too large to be kept here"), steps);
  assert.ok(steps.includes("The same as search 1") && steps.includes("The limit of rounds was reached"));
  await close(page);
});

const LONG_WORD = "Rindfleischetikettierungsüberwachungsaufgabenübertragungsgesetz";
const many = Array.from({ length: 200 }, (_, at) => hit(at + 1, { id: "p" + at, title: at % 3 ? "Passage " + at + " " + LONG_WORD : "מאמר על ההיסטוריה של העיר " + at, text: (LONG_WORD + " steht hier. ").repeat(6) + "Fact " + at }));

for (const { name, size, scheme } of [SCREENS[0], SCREENS[3], { name: "wide", size: WIDE, scheme: "light" }]) {
  test("long words, right-to-left text and 200 passages fit, " + name, async (t) => {
    const answer = "الإجابة هي مدينة القدس، وهي مدينة قديمة. " + LONG_WORD + " ist ein Gesetz.";
    const { url } = await server(t, {
      "POST /v1/agent": ({ response }) => stream(response, [
        started("مَن كتب هذا؟ " + LONG_WORD), { type: "turn_started", turn: 1 }, { type: "think", turn: 1, text: "Ich suche " + LONG_WORD + "." },
        ...search(1, LONG_WORD + " " + LONG_WORD, "passage", many), { type: "answer", text: answer },
        finished(answer, [1, 4, 60].map((at) => ({ start: 42, end: [...answer].length, passage: "p" + at, title: "", stated: true }))),
      ]),
    });
    const page = await open(url, { size, scheme });
    await ask(page, "مَن كتب هذا؟ " + LONG_WORD);
    await fits(page);
    await look(page, "many-" + name);
    assert.ok(await page.locator(".node.passage").count() < 12, "at first only those near the top and those used");
    await page.click(".node.more");
    await page.waitForFunction(() => document.querySelectorAll(".node.passage").length === 200);
    await page.click(".steps > summary");
    await page.click("text=more passages");
    await page.waitForFunction(() => document.querySelectorAll(".hit").length === 200);
    await fits(page);
    await accessible(page);
    await look(page, "many-all-" + name, true);
    await close(page);
  });

  test("an answer of 2,000 words with tables and code is read as Markdown, " + name, async (t) => {
    const answer = longAnswer();
    const end = [...answer.slice(0, answer.indexOf("first claim.") + 12)].length;
    const inTable = [...answer.slice(0, answer.indexOf("| Salzburg | 1756 |") + 19)].length;
    const inCode = [...answer.slice(0, answer.indexOf("```\n\n## After") + 3)].length;
    const { url } = await server(t, {
      "POST /v1/agent": ({ response }) => stream(response, [
        started("Tell me all."), { type: "turn_started", turn: 1 }, ...search(1, "all", "passage", [hit(1, PASSAGES.mozart), hit(2, PASSAGES.vienna)]),
        ...answer.match(/[^]{1,400}/g).map((text) => ({ type: "answer", text })),
        finished(answer, [{ start: 0, end, passage: PASSAGES.mozart.id, title: "", stated: false }, { start: 0, end: inTable, passage: PASSAGES.mozart.id, title: "", stated: true }, { start: 0, end: inCode, passage: "vienna", title: "", stated: true }]),
      ]),
    });
    const page = await open(url, { size, scheme });
    await ask(page, "Tell me all.");
    assert.equal(await page.locator(".prose table").count(), 1);
    assert.equal(await page.locator(".prose td .citation").count(), 1, "the citation stands in its cell");
    assert.equal(await page.locator(".prose pre").count(), 1);
    assert.equal(await page.locator(".prose pre .citation").count(), 0);
    assert.ok((await page.textContent(".prose pre")).includes("if (a < b && c > d) { return \"<b>\"; }"));
    assert.equal(await page.locator(".prose .citation").count(), 3);
    assert.equal(await page.locator(".prose h3").count(), 3);
    await fits(page);
    await accessible(page);
    await look(page, "long-" + name, true);
    await close(page);
  });
}

function longAnswer() {
  const sentence = "The composer travelled widely, wrote for every court that paid him, and kept letters of which many survive. ";
  return "# Summary\n\nThis is the **first claim.**\n\n" + sentence.repeat(30) + "\n\n## Dates\n\n| Place | Year | What happened there, told at some length so that the table is wide |\n|:--|--:|---|\n| Salzburg | 1756 | Birth |\n| Vienna | 1781 | Move |\n\n"
    + "1. " + sentence + "\n2. " + sentence + "\n   - nested `code` and *emphasis*\n\n> " + sentence + "\n\n```js\nif (a < b && c > d) { return \"<b>\"; } // a line that is long enough to need scrolling on a phone, and then some\n```\n\n## After\n\n" + sentence.repeat(75);
}

test("documents are added and deleted, with progress", async (t) => {
  const done = routes()["GET /v1/commits/commit-1"];
  let page = null;
  const { url, seen } = await server(t, {
    // A change goes on until its progress is seen.
    "GET /v1/commits/commit-1": async (all) => { await page.waitForSelector("progress"); done(all); },
  });
  page = await open(url);
  await page.click("nav >> text=Explore");
  await page.click("text=Documents");
  await page.waitForSelector("#upload", { state: "attached" });
  await page.setInputFiles("#upload", [{ name: "notes.md", mimeType: "text/markdown", buffer: Buffer.from("# Trails\n\nA waymark is painted on a tree.\n") }]);
  await page.waitForSelector("text=1 document added");
  const sent = JSON.parse(seen.find((one) => one.method === "POST" && one.path === "/v1/documents").body);
  assert.deepEqual(sent, { documents: [{ id: "notes.md", title: "Trails", text: "# Trails\n\nA waymark is painted on a tree." }], chunked: { "notes.md": 0 }, wait: false });
  await page.click("summary:has-text('Trails')");
  page.once("dialog", (dialog) => dialog.accept());
  await page.click("li:has-text('Trails') >> text=Delete");
  await page.waitForFunction(() => !document.querySelector(".document-list").textContent.includes("Trails"));
  await close(page);
});

test("a line of JSON is uploaded with the metadata that the command line would read", async (t) => {
  const { url, seen } = await server(t);
  const page = await open(url);
  await page.click("nav >> text=Explore");
  await page.click("text=Documents");
  await page.waitForSelector("#upload", { state: "attached" });
  const upload = (lines) => page.setInputFiles("#upload", [{ name: "art.jsonl", mimeType: "text/plain", buffer: Buffer.from(lines.map((line) => JSON.stringify(line)).join("\n")) }]);
  await upload([
    { id: "a", title: "A", text: "One.", metadata: { topic: "art", year: 1 }, year: 1503 },
    { id: "b", title: "B", text: "Two.", metadata: null, year: 1504 },
    { id: "c", title: "C", text: "Three.", metadata: null },
  ]);
  await page.waitForSelector("text=document added");
  const sent = JSON.parse(seen.find((one) => one.method === "POST" && one.path === "/v1/documents").body);
  assert.deepEqual(sent.documents, [
    { id: "a", title: "A", text: "One.", metadata: { topic: "art", year: 1503 } },
    { id: "b", title: "B", text: "Two.", metadata: { year: 1504 } },
    { id: "c", title: "C", text: "Three." },
  ]);
  await upload([{ id: "a", text: "One." }, { id: "b", text: "Two.", metadata: "art" }]);
  await page.waitForSelector("text=art.jsonl, line 2: “metadata” is no object.");
  await close(page);
});

test("an index that may not be changed offers no upload, and a missing scope is named", async (t) => {
  const { url } = await server(t, {
    "GET /v1/index": ({ response }) => json(response, { ...INDEX, writable: false, graph: null, modes: ["passage"] }),
    "GET /debug/load": ({ response }) => error(response, 403, "insufficient_scope", "needs admin"),
  });
  const page = await open(url);
  await page.waitForSelector(".indexed");
  assert.deepEqual(await page.locator("#mode option").allTextContents(), ["policy’s choice", "words and meaning"]);
  await page.click("nav >> text=Explore");
  await page.click("text=Documents");
  await page.waitForSelector(".document-list li");
  assert.equal(await page.locator("#upload").count(), 0);
  await page.click("nav >> text=Operate");
  await page.waitForSelector("text=lacks the scope “admin”");
  await close(page);
});

test("a browser that cannot draw the graph shows its lists", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await page.addInitScript(() => {
    const context = HTMLCanvasElement.prototype.getContext;
    HTMLCanvasElement.prototype.getContext = function (kind, ...rest) { return /webgl/.test(kind) ? null : context.call(this, kind, ...rest); };
  });
  await page.reload();
  await page.click("nav >> text=Explore");
  await page.waitForSelector("text=it has no WebGL");
  await page.fill("#find", "moz");
  await page.click(".matches button >> nth=0");
  await page.click(".neighbors button:has-text('Salzburg')");
  await page.waitForFunction(() => document.querySelector(".panel h2")?.textContent === "Salzburg");
  await accessible(page);
  await close(page);
});

test("all can be done by the keyboard, and nothing moves for those who ask for calm", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await page.waitForSelector(".examples");
  await page.keyboard.press("Shift+Tab");
  for (let tabs = 0; tabs < 40; tabs++) {
    if (await page.evaluate(() => document.activeElement?.textContent?.startsWith("Where was the composer"))) break;
    await page.keyboard.press("Tab");
  }
  await page.keyboard.press("Enter");
  await page.waitForSelector(".hops");
  await page.focus(".node.passage");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".card");
  const moving = await page.evaluate(() => document.getAnimations().filter((one) => one.playState === "running").length);
  assert.equal(moving, 0);
  await close(page);
});


test("a conversation that is forgotten while it runs stays forgotten", async (t) => {
  const { url } = await server(t, { "POST /v1/agent": ({ response }) => stream(response, [...EPISODE.slice(0, 9), never]) });
  const page = await open(url);
  await page.fill("#question", QUESTION);
  await page.press("#question", "Enter");
  await page.waitForSelector(".node.passage");
  await page.click("#history li [aria-label^='Forget']");
  await page.waitForSelector(".welcome");
  await page.waitForLoadState("networkidle");
  await page.waitForTimeout(300);
  assert.equal(await page.locator("#history li").count(), 0);
  await page.reload();
  await page.waitForSelector(".examples");
  assert.equal(await page.locator("#history li").count(), 0);
  await close(page);
});

test("an address of a conversation that is not kept shows an empty one", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await ask(page, QUESTION);
  await page.evaluate(() => { location.hash = "#/ask/unknown"; });
  await page.waitForSelector(".welcome");
  await page.waitForSelector("text=This conversation is not kept in this browser.");
  await close(page);
});

test("a withdrawn search of a kept run leaves its turns in order", async (t) => {
  const found = (turn, query, one, withdrawn) => ({ turn, query, mode: "passage", snapshot: 1, hits: [hit(1, one)], triples: [], cached: false, neutralised: 0, seconds: 0.002, error: null, withdrawn });
  const trace = {
    id: "ep-1", created: 1795439382, status: "finished", model: "evo-rag", protocol: "evo-rag", error: null, answer: "Salzburg", finish_reason: "stop",
    messages: [{ role: "user", content: QUESTION }], options: { mode: null, k: null }, usage: { prompt_tokens: 9, completion_tokens: 8, environment_tokens: 7, searches: 2, search_ms: 2 }, timings: { total: 1.25 },
    actions: ["One.", "Two.", "Three.", "Four."].map((thought, at) => ({ turn: at + 1, thought, action: { type: ["search", "search", "backtrack", "answer"][at] } })),
    searches: [found(1, "Haydn", PASSAGES.haydn, 3), found(2, "Mozart", PASSAGES.mozart, null)],
  };
  const { url } = await server(t, {
    "GET /v1/traces": ({ response }) => json(response, { object: "list", data: [{ id: "ep-1", question: QUESTION, model: "evo-rag", created: 1795439382 }], has_more: false }),
    "GET /v1/traces/ep-1": ({ response }) => json(response, trace),
  });
  const page = await open(url);
  await page.waitForSelector(".examples");
  await page.click("text=On this server");
  await page.click(".on-server li button");
  await page.waitForSelector(".citation");
  await page.click(".steps > summary");
  assert.deepEqual(await page.locator(".thought").allTextContents(), ["One.", "Two.", "Three.", "Four."]);
  assert.ok((await page.locator(".step").nth(2).textContent()).includes("It set aside what it had found for “Haydn”."));
  await close(page);
});

test("a saved page that has opened another run saves that one", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await ask(page, QUESTION);
  const save = async (from, name) => {
    const [download] = await Promise.all([from.waitForEvent("download"), from.click("text=Save as a page")]);
    const path = join(tmpdir(), "waymark-" + name + "-" + process.pid + ".html");
    await download.saveAs(path);
    t.after(() => rmSync(path, { force: true }));
    return "file://" + path;
  };
  await page.click("text=Share");
  const saved = await open(await save(page, "first"));
  await close(page);
  await saved.waitForSelector(".citation");
  const other = [started("Who?"), { type: "turn_started", turn: 1 }, { type: "answer", text: "Nobody." }, finished("Nobody.", [])].map((event) => JSON.stringify(event)).join("\n");
  await saved.setInputFiles("#file", { name: "run.jsonl", mimeType: "text/plain", buffer: Buffer.from(other) });
  await saved.waitForFunction(() => document.querySelector(".question")?.textContent === "Who?");
  await saved.click("text=Share");
  const again = await open(await save(saved, "second"));
  await close(saved);
  await again.waitForSelector(".answer");
  assert.equal(await again.textContent(".question"), "Who?");
  assert.equal(await again.title(), "Who? · Waymark");
  await close(again);
});

test("a damaged run is shown as far as it goes, or refused in words", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await page.waitForSelector(".examples");
  const shown = async (events) => page.setInputFiles("#file", { name: "run.jsonl", mimeType: "text/plain", buffer: Buffer.from(events.map((event) => JSON.stringify(event)).join("\n")) });
  await shown([started("Without texts?"), ...search(1, "x", "passage", [hit(1, { id: "bare" }), null]), { type: "answer", text: "Yes" }, finished("Yes", [null, { start: 0, end: 3, passage: "bare", title: "", stated: true }])]);
  await page.waitForSelector(".citation");
  assert.equal(await page.textContent(".source bdi"), "bare");
  await shown([started("Broken?"), { type: "answer", text: "Yes" }, finished("Yes", [], { usage: {} }), { type: "turn_started", turn: 1 }]);
  await page.waitForSelector("text=This cannot be shown");
  await page.click("text=New question");
  await page.waitForSelector(".welcome");
  await close(page);
});

test("a comparison of runs without answers says so, and asks for no search that the index lacks", async (t) => {
  const { url, seen } = await server(t, {
    "GET /v1/index": ({ response }) => json(response, { ...INDEX, graph: null, modes: ["passage"] }),
    "POST /v1/agent": ({ response }) => stream(response, [started(QUESTION), { type: "turn_started", turn: 1 }, { type: "failed", message: "It broke.", code: "internal" }]),
  });
  const page = await open(url);
  await page.waitForSelector(".indexed");
  await page.click("nav >> text=Compare");
  assert.deepEqual(await page.locator(".half select >> nth=1").inputValue(), "passage");
  await page.fill("#compared", QUESTION);
  await page.press("#compared", "Enter");
  await page.waitForSelector(".figures table");
  assert.ok((await page.textContent(".figures")).includes("Neither gives a complete answer."));
  const asked = seen.filter((one) => one.path === "/v1/agent").map((one) => JSON.stringify(JSON.parse(one.body).rag));
  // Both are asked at once.
  assert.deepEqual(asked.sort(), ['{"mode":"passage"}', "{}"]);
  await close(page);
});

test("a slow reply about a passage is not shown under another one", async (t) => {
  const passage = (id, triples) => ({ object: "index.passage", snapshot: 1, id, title: id, text: "About " + id, metadata: null, degree: 3, previous: null, next: null, triples });
  const fact = (at) => ({ subject: "s" + at, relation: "is", object: "o" + at, subject_phrase: "s" + at, object_phrase: "o" + at });
  const { url } = await server(t, {
    "GET /v1/index/passages/slow": async ({ response }) => { await pause(1500); json(response, passage("slow", { origin: "given", total: 0, offset: 0, has_more: false, data: [] })); },
    "GET /v1/index/passages/fast": ({ response, query }) => {
      const [offset, limit] = ["offset", "limit"].map((name) => Number(query.get(name)));
      const data = Array.from({ length: Math.max(0, Math.min(limit, 150 - offset)) }, (_, at) => fact(offset + at));
      json(response, passage("fast", { origin: "given", total: 150, offset, has_more: offset + data.length < 150, data }));
    },
  });
  const page = await open(url, { hash: "#/explore/passage:slow" });
  await page.waitForSelector(".panel");
  await page.evaluate(() => { location.hash = "#/explore/passage:fast"; });
  await page.waitForFunction(() => document.querySelector(".panel h2")?.textContent === "fast");
  await page.waitForTimeout(1800);
  assert.equal(await page.textContent(".panel h2"), "fast");
  for (const shown of [120, 150]) {
    await page.click("text=Show more");
    await page.waitForFunction((shown) => document.querySelectorAll(".stated li").length === shown, shown);
  }
  assert.equal(await page.locator("text=Show more").count(), 0);
  await close(page);
});
