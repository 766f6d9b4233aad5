// What the server of the tests answers with.
import { readFileSync } from "node:fs";
import { json, error, serve, stream } from "./server.mjs";

const demo = (name) => readFileSync(new URL("../../demo/" + name, import.meta.url), "utf8").trim().split("\n").map((line) => JSON.parse(line));

// The corpus of `waymark demo`, with its facts.
const CORPUS = demo("corpus.jsonl").map(({ id, title, text }) => ({ id, title, text }));
export const FACTS = Object.fromEntries(demo("triples.jsonl").map(({ id, triples }) => [id, triples]));

const ALL_FACTS = Object.values(FACTS).flat();
const NAMES = new Set(ALL_FACTS.flatMap(([subject, , object]) => [subject.toLowerCase(), object.toLowerCase()]));

const passage = (id) => CORPUS.find((one) => one.id === id);

export const PASSAGES = {
  giovanni: passage("don-giovanni"), quixote: passage("don-quixote"), mozart: passage("wolfgang-amadeus-mozart"),
  haydn: passage("joseph-haydn"), vienna: passage("vienna"),
};

export const hit = (rank, one, path = { bm25: { rank, score: 14 / rank }, dense: { rank, score: 0.8 / rank } }) =>
  ({ rank, score: 0.0328 / rank, passage: one, path });

export const search = (turn, query, mode, hits, more = {}) => [
  { type: "search_started", turn, query, mode, k: hits.length },
  { type: "search_finished", turn, query, mode, hits, snapshot: 1, cached: false, milliseconds: 3.2, neutralised: 0, ...more },
  { type: "observation", turn, text: "", tokens: 290, truncated: false },
];

export const usage = { prompt_tokens: 351, completion_tokens: 145, reasoning_tokens: 120, environment_tokens: 580, cached_tokens: 0, searches: 2, search_ms: 6.4 };

export const started = (question, id = "ep-1") =>
  ({ type: "started", id, model: "routerag-smollm2", protocol: "routerag", question, prompt_tokens: 351 });

export const finished = (answer, citations, more = {}) =>
  ({ type: "finished", reason: "stop", answer, usage, turns: 3, searches: 2, citations, ...more });

export const QUESTION = "Where was the composer of Don Giovanni born?";
const { giovanni, quixote, mozart, haydn, vienna } = PASSAGES;

export const EPISODE = [
  started(QUESTION),
  { type: "turn_started", turn: 1 },
  { type: "think", turn: 1, text: " First I need to find" }, { type: "think", turn: 1, text: " the composer of Don Giovanni." },
  { type: "query", turn: 1, text: " [passage] Don Giovanni" },
  ...search(1, "Don Giovanni", "passage", [hit(1, giovanni), hit(2, quixote), hit(3, mozart)]),
  { type: "turn_started", turn: 2 },
  { type: "think", turn: 2, text: " Doc 1 says: \"Don Giovanni is an opera by Wolfgang Amadeus Mozart\". What is missing is the birthplace of Wolfgang Amadeus Mozart." },
  { type: "query", turn: 2, text: " [passage] Wolfgang Amadeus Mozart" },
  ...search(2, "Wolfgang Amadeus Mozart", "passage", [hit(1, mozart), hit(2, haydn), hit(3, vienna)]),
  { type: "turn_started", turn: 3 },
  { type: "think", turn: 3, text: " Doc 1 says: \"Wolfgang Amadeus Mozart was a composer born in Salzburg in 1756\". So the answer is Salzburg." },
  { type: "answer", text: " Salz" }, { type: "answer", text: "burg" },
  finished(" Salzburg", [{ start: 1, end: 9, passage: mozart.id, title: mozart.title, stated: true }]),
];

// Hits of a graph search, and the walk that led to them.
export const WALKED = [
  hit(1, giovanni, { graph: { rank: 1, mass: 0.4, reset: 0, via: [{ phrase: "don giovanni", weight: 1 }] } }),
  hit(2, mozart, { graph: { rank: 2, mass: 0.2, reset: 0, via: [{ phrase: "don giovanni", weight: 1 }, { phrase: "mozart", weight: 1 }] } }),
];
export const WALK = { facts: [{ subject: "don giovanni", relation: "composed by", object: "mozart", similarity: 0.8, score: 1, kept: true }], phrases: [] };

// Episode of a question that follows `QUESTION`.
export const FOLLOW_UP = [
  started("In which country is that?", "ep-2"),
  { type: "turn_started", turn: 1 },
  { type: "think", turn: 1, text: " I look for the country." },
  { type: "query", turn: 1, text: " [passage] Salzburg" },
  ...search(1, "Salzburg", "passage", [hit(1, vienna)]),
  { type: "turn_started", turn: 2 },
  { type: "think", turn: 2, text: " It is Austria." },
  { type: "answer", text: " Austria" },
  finished(" Austria", [{ start: 1, end: 8, passage: vienna.id, title: vienna.title, stated: true }], { turns: 2, searches: 1 }),
];

export const MODELS = [
  { id: "plain", protocol: "plain", parent: "smollm2" }, { id: "routerag", protocol: "routerag", parent: "smollm2" },
  { id: "routerag-smollm2", protocol: "routerag", parent: "smollm2" }, { id: "minilm", protocol: "embedding", parent: "minilm" },
];

export const INDEX = {
  object: "index", name: "demo", names: ["default", "demo"], snapshot: 1, corpus: "demo-1234", passages: CORPUS.length, embedder: { id: "minilm", dims: 384 },
  modes: ["passage", "graph", "hybrid", "triples", "kag"], graph: { source: "corpus", phrases: NAMES.size, facts: ALL_FACTS.length, triples: ALL_FACTS.length, edges: 2400 },
  bytes: 1_843_200, committed: 1795439382, writable: true, stale: false,
};

export const EXAMPLES = [
  { question: QUESTION, hops: 2, facts: [] }, { question: "Which river flows past the museum where the Mona Lisa hangs?", hops: 3, facts: [] },
  { question: "Who painted the Mona Lisa?", hops: 1, facts: [] }, { question: "What is known about the Volga?", hops: 0, facts: [] },
];

const factsOf = (id) => (FACTS[id] ?? []).map(([subject, relation, object]) =>
  ({ subject, relation, object, subject_phrase: subject.toLowerCase(), object_phrase: object.toLowerCase() }));

const all = CORPUS;
const phrase = (label, degree = 3) => ({ kind: "phrase", id: label.toLowerCase(), label, degree });
const point = (one) => ({ kind: "passage", id: one.id, label: one.title, degree: 3 });

function neighborsOf(query) {
  const name = query.get("phrase")?.toLowerCase();
  const id = query.get("passage");
  const mine = Object.entries(FACTS).flatMap(([key, triples]) => triples.map((triple) => ({ key, triple })))
    .filter(({ key, triple: [s, , o] }) => (id ? key === id : [s, o].some((one) => one.toLowerCase() === name)));
  if (!mine.length) return null;
  const edges = new Map();
  for (const { key, triple: [subject, relation, object] } of mine) {
    const fact = { subject, relation, object, passages: [key] };
    for (const label of [subject, object]) {
      if (label.toLowerCase() === name) continue;
      edges.set("w" + label, { node: phrase(label), weight: 1, kinds: [id ? "mention" : "fact"], facts: id ? [] : [fact], cosine: null });
    }
    const from = all.find((one) => one.id === key);
    if (!id && from) edges.set("p" + key, { node: point(from), weight: 1, kinds: ["mention"], facts: [], cosine: null });
  }
  const node = id ? point(all.find((one) => one.id === id)) : phrase(mine[0].triple.find((one) => one.toLowerCase() === name));
  return { object: "index.neighbors", snapshot: 1, node, edges: [...edges.values()], total: edges.size, has_more: false };
}

const found = (query) => {
  const q = query.get("q").toLowerCase();
  const labels = [...new Set(Object.values(FACTS).flat().flatMap(([s, , o]) => [s, o]))];
  return {
    object: "index.nodes", snapshot: 1, query: q, complete: true,
    phrases: labels.filter((label) => label.toLowerCase().includes(q)).slice(0, 8).map((label) => ({ ...phrase(label), match: "inside" })),
    passages: all.filter((one) => (one.title + one.text).toLowerCase().includes(q)).slice(0, 8).map((one) => ({ ...point(one), match: "text", preview: one.text.slice(0, 80) + " …" })),
  };
};

// A whole server; a test replaces the routes it is about.
export function routes(replaced = {}) {
  const documents = [...all];
  let load = 0;
  return {
    "GET /v1/models": ({ response }) => json(response, { object: "list", data: MODELS }),
    "GET /v1/index": ({ response }) => json(response, { ...INDEX, passages: documents.length }),
    "GET /v1/index/questions": ({ response }) => json(response, { object: "list", snapshot: 1, data: [{ ...EXAMPLES[0], facts: [{ subject: "Don Giovanni" }] }, ...EXAMPLES.slice(1)] }),
    "GET /v1/index/nodes": ({ response, query }) => json(response, found(query)),
    "GET /v1/index/neighbors": ({ response, query }) => {
      const near = neighborsOf(query);
      return near ? json(response, near) : error(response, 404, "node_not_found", "there is no such node");
    },
    "POST /v1/agent": ({ response }) => stream(response, EPISODE),
    "POST /v1/traces/ep-1/replay": ({ response }) => json(response, { id: "ep-1", object: "trace.replay", mode: "free", answer: "Rohrau", answer_changed: true, citations: [], finish_reason: "stop", searches: [], trace: null }),
    "POST /v1/search": ({ response }) => json(response, { object: "search", snapshot: 1, hits: [] }),
    "GET /v1/documents": ({ response }) => json(response, { object: "list", snapshot: 1, data: documents.slice(0, 20), has_more: documents.length > 20 }),
    "POST /v1/documents": ({ response, body }) => {
      documents.unshift(...body.documents);
      for (const id of body.delete ?? []) documents.splice(documents.findIndex((one) => one.id === id), 1);
      json(response, { id: "commit-1", object: "documents.commit.status", created: 1, status: "running", progress: { phase: "embedding", done: 1, total: 4 } }, 202);
    },
    "GET /v1/commits/commit-1": ({ response }) => json(response, { id: "commit-1", object: "documents.commit.status", created: 1, status: "done", commit: { added: 1, replaced: 0, unchanged: 0, removed: 0, absent: 0, cut: 0, documents: documents.length, snapshot: 2 } }),
    "GET /debug/load": ({ response }) => {
      load += 1;
      json(response, loadAt(load));
    },
    "GET /debug/state": ({ response }) => json(response, { sessions: [{ id: 7, request: "req-1f3a", state: "running", tokens: 812, blocks: 51, age_seconds: 1.4 }, { id: 8, request: "req-77b0", state: "parked", tokens: 403, blocks: 26, age_seconds: 0.4 }] }),
    "GET *": ({ response, path }) => {
      const id = /^\/v1\/index\/passages\/(.+)$/.exec(path)?.[1];
      const known = documents.find((one) => one.id === id);
      if (!known) return error(response, 404, "document_not_found", "no such document");
      const data = factsOf(id);
      json(response, { object: "index.passage", snapshot: 1, ...known, metadata: null, degree: 3, previous: null, next: null, triples: { origin: "given", total: data.length, offset: 0, has_more: false, data } });
    },
    ...replaced,
  };
}

// Serves until the end of the test.
export async function server(t, replaced = {}) {
  const served = await serve({ routes: routes(replaced) });
  t.after(served.close);
  return served;
}

function loadAt(at) {
  const wave = Math.abs(Math.sin(at / 3));
  return {
    object: "debug.load", phase: "serving", seconds: 600 + at * 1.5, requests: 2, sessions: { running: 1 + Math.round(3 * wave), waiting: Math.round(wave), parked: 1, stalled: 0 },
    blocks: { tokens: 16, total: 1000, free: 700 - at, cached: 200, used: 100 + at },
    totals: { prefill_tokens: 1000 * at, recomputed_tokens: 0, prefix_hit_tokens: 700 * at, decode_tokens: Math.round(400 * at + 150 * wave), steps: 90 * at, turns: 3 * at, preemptions: 0, evictions: 0, searches: 2 * at, client_searches: 0 },
    index: { snapshot: 1, passages: CORPUS.length, stale: false },
  };
}
