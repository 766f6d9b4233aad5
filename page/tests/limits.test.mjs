// Requests of the page beyond the question, which the limits of a key count, and what it makes of their replies.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { EPISODE, PASSAGES, QUESTION, WALK, WALKED, finished, routes, search, server, started } from "./fixtures.mjs";
import { ask, begin, close, end, eventually, open } from "./harness.mjs";
import { error, json, stream } from "./server.mjs";

before(begin);
after(end);

const { giovanni, mozart } = PASSAGES;

const looked = (seen) => seen.filter(({ path }) => path.startsWith("/v1/index/passages/")).map(({ path }) => path.split(/[/?]/)[4]);

// An episode with a graph search; `pause` is waited for after it.
const walked = (pause) => [
  started(QUESTION), { type: "turn_started", turn: 1 }, ...search(1, "Don Giovanni", "graph", WALKED), pause, { type: "answer", text: "Salzburg" },
  finished("Salzburg", [{ start: 0, end: 8, passage: mozart.id, title: "", stated: true }]),
];

test("facts are asked for until they lead to the answer, and no more once the server refuses one", async (t) => {
  let room = Infinity;
  const passages = routes()["GET *"];
  const { url, seen } = await server(t, {
    "GET *": (all) => {
      room -= 1;
      return room < 0 ? error(all.response, 429, "rate_limit_exceeded", "this key may ask 20 times a minute") : passages(all);
    },
  });
  const page = await open(url);
  await ask(page, QUESTION);
  await page.waitForSelector(".hops");
  assert.deepEqual(looked(seen), [giovanni.id, mozart.id], "only passages that were used");
  seen.length = 0;
  room = 0;
  await page.click("text=New question");
  await ask(page, QUESTION);
  await eventually(() => looked(seen).length);
  await page.waitForTimeout(300);
  assert.deepEqual(looked(seen), [giovanni.id]);
  assert.equal(await page.locator(".hops").count(), 0);
  assert.equal(await page.locator(".notice").count(), 0, "the answer needs no facts");
  await close(page);
});

test("a key with one request at a time gets its facts when the answer is complete", async (t) => {
  let running = 0;
  let refused = 0;
  let freed = 0;
  const one = (route, slow) => (all) => {
    if (running || freed > Date.now()) {
      refused += 1;
      return error(all.response, 429, "concurrency_limit_exceeded", "this key may ask for 1 things at once");
    }
    running += 1;
    all.response.on("close", () => {
      running -= 1;
      // A stream counts for a moment after its end.
      if (slow) freed = Date.now() + 300;
    });
    return route(all);
  };
  const { url } = await server(t, {
    "POST /v1/agent": one(({ response }) => stream(response, walked(() => eventually(() => refused))), true),
    "POST /v1/search": one(({ response }) => json(response, { snapshot: 1, hits: WALKED, walk: WALK })),
    "GET *": one(routes()["GET *"]),
  });
  const page = await open(url);
  await ask(page, QUESTION);
  await page.waitForSelector(".hops");
  assert.deepEqual(await page.locator(".node.fact bdi").allTextContents(), ["don giovanni composed by mozart"]);
  await close(page);
});

test("a search is repeated once for its facts, and facts of another walk are not shown", async (t) => {
  const other = WALKED.map((hit) => ({ ...hit, path: { graph: { ...hit.path.graph, mass: hit.path.graph.mass / 2 } } }));
  for (const walk of [
    ({ response }) => json(response, { snapshot: 1, hits: other, walk: WALK }),
    ({ response }) => error(response, 403, "permission_denied", "this key may not search"),
  ]) {
    const { url, seen } = await server(t, { "POST /v1/agent": ({ response }) => stream(response, walked(() => {})), "POST /v1/search": walk });
    const page = await open(url);
    await ask(page, QUESTION);
    await page.waitForSelector(".hops");
    assert.equal(seen.filter((one) => one.path === "/v1/search").length, 1);
    assert.equal(await page.locator(".node.fact").count(), 0);
    await close(page);
  }
});

test("Operate asks for the sequences with every second look, and waits when it is told to", async (t) => {
  let looks = 0;
  const times = [];
  const load = routes()["GET /debug/load"];
  const { url, seen } = await server(t, {
    "GET /debug/load": (all) => {
      times.push(Date.now());
      looks += 1;
      if (looks !== 3) return load(all);
      all.response.setHeader("retry-after", "5");
      return error(all.response, 429, "rate_limit_exceeded", "this key may ask 20 times a minute");
    },
  });
  const page = await open(url);
  await page.click("nav >> text=Operate");
  await page.waitForSelector(".operate td");
  await page.waitForSelector("text=this key may ask 20 times a minute");
  assert.equal(seen.filter((one) => one.path === "/debug/state").length, 1);
  await eventually(() => looks > 3);
  assert.ok(times[3] - times[2] >= 4900, "looked after " + (times[3] - times[2]) + " ms");
  await close(page);
});
