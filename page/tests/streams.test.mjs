// Streams of `/v1/agent`: servers that refuse or lose them, follow-up questions, and searches that are repeated.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { EPISODE, FOLLOW_UP, PASSAGES, QUESTION, finished, hit, search, server, started } from "./fixtures.mjs";
import { ask, begin, close, end, open } from "./harness.mjs";
import { error, json, never, stream } from "./server.mjs";

before(begin);
after(end);

test("a server without resumable streams is asked for one that is not", async (t) => {
  const refusal = { message: "this server has no resumable streams", type: "invalid_request_error", code: "unsupported_parameter", param: "resumable" };
  const { url, seen } = await server(t, {
    "POST /v1/agent": ({ response, body }) => (body.resumable ? json(response, { error: refusal }, 400) : stream(response, EPISODE)),
  });
  const page = await open(url);
  await ask(page, QUESTION);
  await page.waitForSelector(".citation");
  const asked = seen.filter((one) => one.path === "/v1/agent").map((one) => JSON.parse(one.body).resumable);
  assert.deepEqual(asked, [true, undefined]);
  await close(page);
});

test("another fault of a request is told and not tried again", async (t) => {
  const refusal = { message: "`question` is empty", type: "invalid_request_error", code: "invalid_value", param: "question" };
  const { url, seen } = await server(t, { "POST /v1/agent": ({ response }) => json(response, { error: refusal }, 400) });
  const page = await open(url);
  await ask(page, QUESTION);
  assert.ok((await page.textContent(".notice.bad")).includes("`question` is empty"));
  assert.equal(seen.filter((one) => one.path === "/v1/agent").length, 1);
  await close(page);
});

test("a server that has too many requests is asked for a broken stream when it has time again", async (t) => {
  const times = [];
  let page = null;
  const { url } = await server(t, {
    "POST /v1/agent": ({ response }) => stream(response, [...EPISODE.slice(0, 7), () => page.waitForSelector(".node.passage"), "break"]),
    "GET /v1/agent/ep-1": ({ response, query }) => {
      times.push(Date.now());
      if (times.length > 1) return stream(response, EPISODE, { from: Number(query.get("after")) });
      response.setHeader("retry-after", "2");
      return error(response, 429, "rate_limit_exceeded", "this key may send 60 requests per minute");
    },
  });
  page = await open(url);
  await ask(page, QUESTION);
  assert.equal((await page.textContent(".answer p")).replace(/\d/g, ""), "Salzburg");
  assert.equal(times.length, 2);
  assert.ok(times[1] - times[0] >= 1900, "asked after " + (times[1] - times[0]) + " ms");
  await close(page);
});

test("a follow-up whose stream breaks is taken up again, and its end is told as it was", async (t) => {
  const cut = [...FOLLOW_UP.slice(0, -1), finished(" Austria", [], { reason: "length", turns: 2, searches: 1 })];
  let page = null;
  const { url } = await server(t, {
    "POST /v1/agent": ({ response, body }) => {
      if (!body.history) return stream(response, EPISODE);
      return stream(response, [...cut.slice(0, 6), () => page.waitForSelector(".answered:nth-child(2) .node.passage"), "break"], { id: "ep-2" });
    },
    "GET /v1/agent/ep-2": ({ response, query }) => stream(response, cut, { id: "ep-2", from: Number(query.get("after")) }),
  });
  page = await open(url);
  await ask(page, QUESTION);
  await ask(page, "In which country is that?");
  await page.waitForSelector(".answered:nth-child(2) >> text=reached its limit of length");
  assert.ok((await page.textContent(".answered:nth-child(2) .answer")).includes("Austria"));
  await close(page);
});

const histories = (seen) => seen.filter((one) => one.path === "/v1/agent").map((one) => JSON.parse(one.body).history?.map(({ content }) => content) ?? []);

test("a follow-up comes after answers and refusals, not after what was stopped or cut off", async (t) => {
  const question = (text, id) => [started(text, id), { type: "turn_started", turn: 1 }];
  const ends = {
    "Stopped?": [...question("Stopped?", "ep-1"), { type: "answer", text: "He was born in Sal" }, never],
    "Cut?": [...question("Cut?", "ep-2"), { type: "answer", text: "He was" }, finished("He was", [], { reason: "length" })],
    "Broken?": [...question("Broken?", "ep-3"), { type: "answer", text: "He" }, { type: "failed", message: "It broke.", code: "internal" }],
    "Refused?": [...question("Refused?", "ep-4"), { type: "refusal", text: "Nobody knows." }, finished(null, [], { reason: "refused" })],
    "Last?": [...question("Last?", "ep-5"), { type: "answer", text: "Yes." }, finished("Yes.", [])],
  };
  const { url, seen } = await server(t, {
    "POST /v1/agent": ({ response, body }) => stream(response, ends[body.question]),
    "DELETE /v1/agent/ep-1": ({ response }) => response.writeHead(204).end(),
  });
  const page = await open(url);
  await page.fill("#question", "Stopped?");
  await page.press("#question", "Enter");
  await page.waitForSelector("text=He was born in Sal");
  await page.click("#stop");
  await page.waitForSelector("text=You stopped this answer");
  for (const next of ["Cut?", "Broken?", "Refused?", "Last?"]) await ask(page, next);
  assert.deepEqual(histories(seen), [[], [], [], [], ["Refused?", "Nobody knows."]]);
  await close(page);
});

test("a conversation that is too long loses its oldest exchanges, and a question that is too long loses none", async (t) => {
  const { url, seen } = await server(t, {
    "POST /v1/agent": ({ response, body }) => {
      const tooLong = body.history?.length > 2 || body.question === "Too long?";
      if (tooLong) return error(response, 400, "context_length_exceeded", "the prompt is longer than the context");
      return stream(response, [started(body.question), { type: "turn_started", turn: 1 }, { type: "answer", text: "Yes." }, finished("Yes.", [])]);
    },
  });
  const page = await open(url);
  for (const question of ["One?", "Two?", "Three?"]) await ask(page, question);
  assert.deepEqual(histories(seen), [[], ["One?", "Yes."], ["One?", "Yes.", "Two?", "Yes."], ["Two?", "Yes."]]);
  seen.length = 0;
  await ask(page, "Too long?");
  assert.ok((await page.textContent(".notice.bad")).includes("longer than the context"));
  await ask(page, "Four?");
  const all = [["Two?", "Yes.", "Three?", "Yes."], ["Three?", "Yes."]];
  assert.deepEqual(histories(seen), [...all, [], ...all]);
  await close(page);
});

test("a search that is made again after it failed is shown with what it found", async (t) => {
  const { url } = await server(t, {
    "POST /v1/agent": ({ response }) => stream(response, [
      started(QUESTION),
      { type: "turn_started", turn: 1 }, ...search(1, "Mozart", "passage", [], { error: "it took too long", snapshot: null }),
      { type: "turn_started", turn: 2 }, ...search(2, "Mozart", "passage", [hit(1, PASSAGES.mozart)]),
      { type: "turn_started", turn: 3 }, ...search(3, "Mozart", "passage", [hit(1, PASSAGES.mozart)], { cached: true }),
      { type: "answer", text: "Salzburg" }, finished("Salzburg", [{ start: 0, end: 8, passage: PASSAGES.mozart.id, title: "", stated: true }]),
    ]),
  });
  const page = await open(url);
  await ask(page, QUESTION);
  assert.deepEqual(await page.locator(".source mark").allTextContents(), ["Salzburg"]);
  assert.ok((await page.textContent(".steps > summary")).includes("2 searches and 1 repeat"));
  await page.click(".steps > summary");
  const steps = await page.textContent(".timeline");
  assert.ok(steps.includes("The search failed: it took too long"), steps);
  assert.ok(steps.includes("The same as search 2") && !steps.includes("The same as search 1"), steps);
  await close(page);
});
