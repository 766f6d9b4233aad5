// State of the page: stored and shared conversations, replies that come late, keys, and indexes without a graph.
import assert from "node:assert/strict";
import { readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { inflateRawSync } from "node:zlib";
import { EPISODE, FOLLOW_UP, INDEX, MODELS, PASSAGES, QUESTION, routes, server } from "./fixtures.mjs";
import { ask, begin, close, end, eventually, kept, open } from "./harness.mjs";
import { error, json, never, pause, stream } from "./server.mjs";

before(begin);
after(end);

const FOLLOWED = {
  "POST /v1/agent": ({ response, body }) => (body.history ? stream(response, FOLLOW_UP, { id: "ep-2" }) : stream(response, EPISODE)),
};

// A promise, and the function that fulfills it.
function gate() {
  let open = null;
  const opened = new Promise((resolve) => { open = resolve; });
  return { open, opened };
}

// True for a stored conversation whose runs have ended and know facts.
const ended = ({ runs }) => runs.every((run) => run.took !== null && Object.keys(run.facts).length > 0);

// Opens the conversation of a tab in another one.
const beside = (tab, url) => open(url, { context: tab.context(), hash: new URL(tab.url()).hash });

test("a conversation that goes on in two tabs keeps the questions of both", async (t) => {
  const { url } = await server(t, FOLLOWED);
  const first = await open(url);
  await ask(first, QUESTION);
  await kept(first, ended);
  const second = await beside(first, url);
  await second.waitForSelector(".citation");
  for (const [tab, question] of [[first, "In which country is that?"], [second, "And which river is there?"]]) {
    await tab.bringToFront();
    await ask(tab, question);
    await tab.waitForSelector(".answered:nth-child(2) .citation");
    await kept(tab, (stored) => ended(stored) && stored.runs.some((run) => run.question === question));
  }
  await first.bringToFront();
  // Saves the conversation as the first tab knows it.
  await first.click(".answered:nth-child(2) [aria-label='Good answer']");
  await kept(first, ({ runs }) => runs.some((run) => run.feedback === "good"));
  await first.reload();
  await first.waitForSelector(".answered:nth-child(3)");
  assert.deepEqual(await first.locator(".question").allTextContents(), [QUESTION, "In which country is that?", "And which river is there?"]);
  assert.deepEqual(second.faults, []);
  await close(first);
});

test("the history keeps and lists all conversations, however many there are", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await ask(page, QUESTION);
  await kept(page, ended);
  const count = (added) => page.evaluate(async (added) => {
    const asked = (request) => new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    const base = await asked(indexedDB.open("waymark"));
    const store = base.transaction("conversations", "readwrite").objectStore("conversations");
    for (let at = 0; at < added; at++) await asked(store.put({ id: "old" + at, title: "Question " + at, changed: at, runs: [] }));
    const number = await asked(store.count());
    base.close();
    return number;
  }, added);
  assert.equal(await count(250), 251);
  await page.reload();
  await page.waitForSelector("#history li:nth-child(251)");
  assert.equal(await page.textContent("#history li:nth-child(251) a"), "Question 0");
  assert.equal(await count(0), 251);
  await close(page);
});

test("a retried question is replaced in the history", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await ask(page, QUESTION);
  const { runs: [old] } = await kept(page, ended);
  await page.click("text=Retry");
  await kept(page, (stored) => ended(stored) && stored.runs.some((run) => run.id !== old.id));
  await page.reload();
  await page.waitForSelector(".citation");
  assert.equal(await page.locator(".answered").count(), 1);
  await close(page);
});

test("a retried question stays replaced when another tab has the conversation open", async (t) => {
  const { url } = await server(t);
  const first = await open(url);
  await ask(first, QUESTION);
  const { runs: [old] } = await kept(first, ended);
  const second = await beside(first, url);
  await second.waitForSelector(".citation");
  await first.bringToFront();
  await first.click("text=Retry");
  const { changed } = await kept(first, (stored) => ended(stored) && stored.runs.some((run) => run.id !== old.id));
  await second.bringToFront();
  // Saves the conversation as the second tab knows it.
  await second.click("[aria-label='Good answer']");
  await kept(second, (stored) => stored.changed > changed);
  await second.reload();
  await second.waitForSelector(".citation");
  assert.equal(await second.locator(".answered").count(), 1);
  assert.deepEqual(first.faults, []);
  await close(second);
});

test("feedback that is taken back does not return", async (t) => {
  const { url } = await server(t);
  const page = await open(url);
  await ask(page, QUESTION);
  const good = "[aria-label='Good answer']";
  for (const pressed of ["true", "false"]) {
    await page.click(good);
    await page.waitForSelector(good + "[aria-pressed='" + pressed + "']");
    await kept(page, ({ runs: [run] }) => run.feedback === (pressed === "true" ? "good" : null));
  }
  await page.reload();
  await page.waitForSelector(".citation");
  assert.equal(await page.getAttribute(good, "aria-pressed"), "false");
  await close(page);
});

test("facts that come late survive another tab that does not know them", async (t) => {
  const late = gate();
  const passages = routes()["GET *"];
  const { url } = await server(t, {
    "GET /v1/index/passages/wolfgang-amadeus-mozart": async (all) => {
      await late.opened;
      passages(all);
    },
  });
  const first = await open(url);
  await first.fill("#question", QUESTION);
  await first.press("#question", "Enter");
  await first.waitForSelector(".citation");
  // A conversation is saved every 3 s until its run knows its facts.
  await kept(first, ({ runs: [run] }) => run.took !== null);
  const second = await beside(first, url);
  await second.waitForSelector(".citation");
  await first.bringToFront();
  late.open();
  await first.waitForSelector(".hops");
  await kept(first, ({ runs: [run] }) => PASSAGES.mozart.id in run.facts);
  await second.bringToFront();
  await second.click("[aria-label='Good answer']");
  await kept(second, ({ runs: [run] }) => run.feedback === "good");
  await second.reload();
  await second.waitForSelector(".citation");
  assert.equal(await second.locator(".hops").count(), 1);
  assert.deepEqual(first.faults, []);
  await close(second);
});

test("the end of a run survives another tab that was opened before it", async (t) => {
  const late = gate();
  const events = [...EPISODE.slice(0, -1), () => late.opened, "break"];
  const { url } = await server(t, { "POST /v1/agent": ({ response }) => stream(response, events) });
  const first = await open(url);
  await first.fill("#question", QUESTION);
  await first.press("#question", "Enter");
  await first.waitForSelector(".answer.short");
  // A conversation is saved every 3 s while its run goes on.
  await kept(first, ({ runs: [run] }) => run.events.at(-1)?.event.text === " Salzburg");
  const second = await beside(first, url);
  await second.waitForSelector("text=You stopped this answer");
  await first.bringToFront();
  late.open();
  await first.waitForSelector("text=The answer broke off");
  await kept(first, ended);
  await second.bringToFront();
  await second.click("[aria-label='Good answer']");
  await kept(second, ({ runs: [run] }) => run.feedback === "good");
  await second.reload();
  await second.waitForSelector("text=The answer broke off");
  assert.deepEqual(first.faults, []);
  await close(second);
});

test("facts that come late for one question do not undo the next one", async (t) => {
  const late = gate();
  const passages = routes()["GET *"];
  const { url } = await server(t, {
    ...FOLLOWED,
    // Only the first question finds this passage.
    "GET /v1/index/passages/wolfgang-amadeus-mozart": async (all) => {
      await late.opened;
      passages(all);
    },
  });
  const page = await open(url);
  for (const [at, question] of [[1, QUESTION], [2, "In which country is that?"]]) {
    await page.fill("#question", question);
    await page.press("#question", "Enter");
    await page.waitForSelector(".answered:nth-child(" + at + ") .citation");
    await page.waitForSelector("#stop", { state: "detached" });
  }
  await kept(page, (stored) => stored.runs.length === 2 && ended(stored));
  await page.click("text=New question");
  await page.waitForSelector(".welcome");
  late.open();
  await kept(page, ({ runs: [run] }) => PASSAGES.mozart.id in run.facts);
  await page.click("#history li a");
  await page.waitForSelector(".answered:nth-child(2)");
  await close(page);
});

test("a shared follow-up holds neither the conversation before it nor the feedback", async (t) => {
  const { url } = await server(t, FOLLOWED);
  const page = await open(url);
  await ask(page, QUESTION);
  await ask(page, "In which country is that?");
  await page.waitForSelector(".answered:nth-child(2) .citation");
  await page.click(".answered:nth-child(2) [aria-label='Good answer']");
  await page.click(".answered:nth-child(2) .actions >> text=Share");
  await page.click("text=Copy link");
  await page.waitForSelector(".toast.shown");
  const link = await page.evaluate(() => navigator.clipboard.readText());
  const run = JSON.parse(inflateRawSync(Buffer.from(link.split("#run=")[1], "base64url")));
  assert.deepEqual([run.question, run.before, run.feedback], ["In which country is that?", [], undefined]);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Save as a page")]);
  const path = join(tmpdir(), "waymark-follow-up-" + process.pid + ".html");
  await download.saveAs(path);
  t.after(() => rmSync(path, { force: true }));
  const saved = readFileSync(path, "utf8");
  assert.ok(saved.includes("In which country is that?") && !saved.includes(QUESTION));
  await close(page);
});

test("a key press of an input method neither asks nor stops", async (t) => {
  const { url, seen } = await server(t, {
    "POST /v1/agent": ({ response }) => stream(response, [...EPISODE.slice(0, 9), never]),
    "DELETE /v1/agent/ep-1": ({ response }) => response.writeHead(204).end(),
  });
  const page = await open(url);
  // Safari marks such a press by its code alone.
  const press = (key) => page.evaluate((key) => {
    const event = new KeyboardEvent("keydown", { key, keyCode: 229, bubbles: true, cancelable: true });
    document.querySelector("#question").dispatchEvent(event);
  }, key);
  await page.fill("#question", QUESTION);
  await press("Enter");
  await page.waitForTimeout(300);
  assert.equal(await page.inputValue("#question"), QUESTION);
  await page.press("#question", "Enter");
  await page.waitForSelector(".node.passage");
  await press("Escape");
  await page.waitForTimeout(300);
  await page.click("#stop");
  await page.waitForSelector("text=You stopped this answer");
  assert.equal(seen.filter((one) => one.method === "POST").length, 1);
  await close(page);
});

test("a key that no header can hold is refused, and another one can be given", async (t) => {
  const guarded = (route) => (all) => (all.request.headers.authorization === "Bearer secret" ? route(all) : error(all.response, 401, "invalid_api_key", "no key"));
  const { url } = await server(t, Object.fromEntries(Object.entries(routes()).map(([name, route]) => [name, guarded(route)])));
  const page = await open(url);
  await page.waitForSelector("#key");
  await page.fill("#key", "schlüssel-€");
  await page.click("text=Use key");
  await page.waitForSelector("text=does not know this key");
  assert.equal(await page.inputValue("#key"), "schlüssel-€");
  await page.fill("#key", "secret");
  await page.click("text=Use key");
  await page.waitForSelector(".examples");
  await close(page);
});

test("an answer over an index of the policy's own is explained from that index", async (t) => {
  const models = MODELS.map((one) => (one.id === "routerag-smollm2" ? { ...one, index: "law & order" } : one));
  const { url, seen } = await server(t, { "GET /v1/models": ({ response }) => json(response, { object: "list", data: models }) });
  const page = await open(url);
  await ask(page, QUESTION);
  const asked = () => seen.filter(({ path }) => path.startsWith("/v1/index/passages/"));
  await eventually(() => asked().length > 0);
  for (const { path } of asked()) assert.equal(new URL(path, url).searchParams.get("index"), "law & order");
  await page.click(".citation");
  await page.waitForSelector("#card");
  assert.equal(await page.locator("#card a").count(), 0, "Explore shows the default index");
  await close(page);
});

test("an index without a graph is explored by its passages, and what it lacks is named", async (t) => {
  const { mozart, vienna } = PASSAGES;
  const { url, seen } = await server(t, {
    "GET /v1/index": ({ response }) => json(response, { ...INDEX, graph: null, modes: ["passage"] }),
    "GET /v1/index/questions": ({ response }) => json(response, { object: "list", snapshot: 1, data: [{ question: "What is known about Vienna?", hops: 0, facts: [], passage: { id: vienna.id } }] }),
    "GET /v1/index/nodes": ({ response }) => json(response, { object: "index.nodes", snapshot: 1, query: "moz", complete: true, phrases: [], passages: [{ kind: "passage", id: mozart.id, label: mozart.title, degree: 0, match: "start" }] }),
    "GET /v1/index/neighbors": ({ response }) => error(response, 400, "not_configured", "this index has no graph"),
  });
  const page = await open(url);
  await page.waitForSelector(".indexed");
  await page.click("nav >> text=Explore");
  await page.waitForFunction(() => document.querySelector(".panel h2")?.textContent === "Vienna");
  await page.fill("#find", "moz");
  await page.click(".matches button >> nth=0");
  await page.waitForFunction(() => document.querySelector(".panel h2")?.textContent === "Wolfgang Amadeus Mozart");
  await page.waitForTimeout(300);
  assert.equal(await page.locator(".notice.bad").count(), 0);
  assert.ok(!seen.some((one) => one.path.startsWith("/v1/index/neighbors")));
  await page.click(".stated .name >> nth=0");
  await page.waitForSelector("text=this index has no graph");
  assert.ok(!(await page.textContent("main")).includes("This server has no index"));
  await close(page);
});

test("a late reply is not drawn into a graph that was begun anew", async (t) => {
  const asked = gate();
  const late = gate();
  const node = (label) => ({ kind: "phrase", id: label, label, degree: 1 });
  const { url } = await server(t, {
    "GET /v1/index/neighbors": async ({ response, query }) => {
      const label = query.get("phrase");
      if (label === "Don Giovanni") {
        asked.open();
        await late.opened;
      }
      const edge = { node: node("near " + label), weight: 1, kinds: ["fact"], facts: [], cosine: null };
      json(response, { object: "index.neighbors", snapshot: 1, node: node(label), edges: [edge], total: 1, has_more: false });
    },
  });
  const page = await open(url);
  await page.waitForSelector(".indexed");
  await page.click("nav >> text=Explore");
  await asked.opened;
  await page.evaluate(() => { location.hash = "#/explore/phrase:haydn"; });
  const drawn = () => page.getAttribute(".drawing", "aria-label");
  await page.waitForFunction(() => document.querySelector(".drawing")?.getAttribute("aria-label").startsWith("Graph with 2 points"));
  late.open();
  await page.waitForTimeout(500);
  assert.ok((await drawn()).startsWith("Graph with 2 points"), await drawn());
  assert.equal(await page.textContent(".panel h2"), "haydn");
  await close(page);
});

test("a double click shows the next documents once", async (t) => {
  const row = (at) => ({ id: "d" + at, title: "Document " + at, text: "Text " + at });
  const { url } = await server(t, {
    "GET /v1/documents": async ({ response, query }) => {
      const isFirst = !query.get("after");
      if (!isFirst) await pause(300);
      const data = Array.from({ length: isFirst ? 20 : 10 }, (_, at) => row(isFirst ? at : 20 + at));
      json(response, { object: "list", snapshot: 1, data, has_more: isFirst });
    },
  });
  const page = await open(url);
  await page.click("nav >> text=Explore");
  await page.click("text=Documents");
  await page.dblclick("text=Show more");
  await page.waitForSelector("text=Document 29");
  await page.waitForTimeout(1000);
  assert.equal(await page.locator(".document-list li").count(), 30);
  await close(page);
});
