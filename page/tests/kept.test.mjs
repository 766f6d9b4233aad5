// Runs that the server keeps, opened from "On this server".
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { EPISODE, PASSAGES, QUESTION, hit, server } from "./fixtures.mjs";
import { begin, close, end, open } from "./harness.mjs";
import { json, never, stream } from "./server.mjs";

before(begin);
after(end);

const { giovanni, mozart } = PASSAGES;

const found = (turn, query, hits) => ({ turn, query, mode: "passage", snapshot: 1, hits, triples: [], cached: false, neutralised: 0, seconds: 0.002, error: null, withdrawn: null });

const trace = (more) => ({
  id: "ep-1", created: 1795439382, status: "finished", model: "evo-rag", protocol: "evo-rag", error: null, answer: null, finish_reason: "stop",
  messages: [{ role: "user", content: QUESTION }], options: { mode: null, k: null },
  usage: { prompt_tokens: 9, completion_tokens: 8, environment_tokens: 7, searches: 1, search_ms: 2 }, timings: { total: 1.25 },
  searches: [found(1, "Mozart", [hit(1, mozart)])], actions: [{ turn: 1, thought: "I look.", action: { type: "search" } }], ...more,
});

const listed = (...traces) => ({ response }) => json(response, { object: "list", data: traces.map(({ id }) => ({ id, question: QUESTION, model: "evo-rag", created: 1795439382 })), has_more: false });

// Opens a page that shows this trace.
async function shown(t, one) {
  const { url } = await server(t, { "GET /v1/traces": listed(one), "GET /v1/traces/ep-1": ({ response }) => json(response, one) });
  const page = await open(url);
  await page.waitForSelector(".examples");
  await page.click("text=On this server");
  await page.click(".on-server li button");
  await page.waitForSelector(".answered .steps");
  await page.click(".steps > summary");
  return page;
}

test("a kept run that was stopped is not told as one without an answer", async (t) => {
  const page = await shown(t, trace({ status: "cancelled", finish_reason: null }));
  const text = await page.textContent(".answered");
  assert.ok(text.includes("It was stopped, or its client went away, before it was complete.") && !text.includes("found no answer"), text);
  await close(page);
});

test("a kept refusal is shown with its explanation, or the one that every refusal has", async (t) => {
  for (const [text, expected] of [["Nobody knows.", "Nobody knows."], ["", "The question cannot be answered."]]) {
    const page = await shown(t, trace({ finish_reason: "refused", actions: [{ turn: 1, thought: "", action: { type: "search" } }, { turn: 2, thought: "", action: { type: "refuse", text } }] }));
    assert.equal(await page.textContent(".answer"), expected);
    assert.equal(await page.locator(".answered .notice").count(), 0);
    await close(page);
  }
});

test("each thought of a kept run stands in its turn", async (t) => {
  const thoughts = ["First.", "", "Doc 1 says so."];
  const page = await shown(t, trace({
    answer: "Salzburg", searches: [found(1, "Don Giovanni", [hit(1, giovanni)]), found(2, "Mozart", [hit(1, mozart)])],
    actions: thoughts.map((thought, at) => ({ turn: at + 1, thought, action: { type: at === 2 ? "answer" : "search" } })),
  }));
  const steps = page.locator(".timeline .step:not(.total)");
  assert.deepEqual(await steps.evaluateAll((all) => all.map((step) => step.querySelector(".thought")?.textContent ?? "")), thoughts);
  // The second turn thought nothing, so nothing says that the first search was used.
  assert.deepEqual(await page.locator(".hit:has(.tag)").allTextContents(), ["1 Wolfgang Amadeus Mozartused"]);
  await close(page);
});

test("no passage supports a kept answer without content of its own", async (t) => {
  const page = await shown(t, trace({ answer: " No", searches: [found(1, "Mozart", [hit(1, { ...mozart, text: "There is no doubt." })])] }));
  assert.equal(await page.locator(".source").count(), 0);
  assert.ok((await page.textContent(".answered")).includes("so check it before you rely on it"));
  await close(page);
});

test("a kept run that arrives late neither replaces what was asked meanwhile nor what was chosen after it", async (t) => {
  const slow = trace({ id: "ep-slow" });
  const fast = trace({ id: "ep-fast", answer: "Salzburg" });
  const gates = [];
  const { url, seen } = await server(t, {
    "GET /v1/traces": listed(slow, fast),
    "GET /v1/traces/ep-slow": ({ response }) => { gates.push(() => json(response, slow)); },
    "GET /v1/traces/ep-fast": ({ response }) => json(response, fast),
    "POST /v1/agent": ({ response }) => stream(response, [...EPISODE.slice(0, 9), never], { id: "ep-2" }),
  });
  const page = await open(url);
  await page.waitForSelector(".examples");
  await page.click("text=On this server");
  const choose = (at) => page.click(".on-server li:nth-child(" + at + ") button");
  const arrives = async () => {
    const arrived = page.waitForResponse((response) => response.url().endsWith("/v1/traces/ep-slow"));
    gates.shift()();
    await (await arrived).finished();
    await page.waitForTimeout(300);
  };
  await choose(1);
  await choose(2);
  await page.waitForSelector(".citation");
  await arrives();
  assert.equal(await page.locator(".citation").count(), 1);
  await page.click("text=New question");
  await choose(1);
  await page.fill("#question", QUESTION);
  await page.press("#question", "Enter");
  await page.waitForSelector(".node.passage");
  await arrives();
  assert.equal(await page.locator(".doing").count(), 1);
  assert.equal(seen.filter((one) => one.method === "DELETE").length, 0);
  await close(page);
});
