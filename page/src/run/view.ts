// View of a run, computed from its events.
import type { AgentEvent, Hit, SearchFinished } from "../api/types";
import type { Run, Search, Turn, View } from "./run";

const LIMITS: Record<string, string> = {
  turns: "The limit of rounds was reached: it had to answer now.",
  searches: "The limit of searches was reached: it had to answer now.",
  sampled_tokens: "The limit of written tokens was reached.",
  observation_tokens: "The passages were too long for one reading and were shortened.",
  environment_tokens: "The limit of reading was reached.",
  time: "The time limit was reached.",
  context: "The model's context is full.",
};

export function viewOf(run: Run): View {
  const view: View = {
    episode: "", model: run.settings.model, protocol: "", turns: [], searches: [], answer: "", refusal: "",
    citations: [], usage: null, reason: "", failure: run.failure ?? "", over: run.took !== null,
  };
  for (const { at, event } of run.events) take(view, event, at);
  // Policies write spaces before the answer. A finished answer keeps them, because citations count from its start.
  view.answer = view.over ? view.answer : view.answer.trimStart();
  return view;
}

function turnOf(view: View, number: number, at: number): Turn {
  const known = view.turns.find((turn) => turn.number === number);
  if (known) {
    known.ended = Math.max(known.ended, at);
    return known;
  }
  const turn: Turn = {
    number, thought: "", wrote: "", other: "", searches: [], read: 0, cut: false, notes: [], begun: at, ended: at,
  };
  const before = view.turns.at(-1);
  if (before) before.ended = Math.max(before.ended, at);
  view.turns.push(turn);
  return turn;
}

const text = (value: unknown) => (typeof value === "string" ? value : "");

// The objects of a list, which in a run from outside may be anything.
const objects = <T extends object>(list: T[] | undefined): T[] => (Array.isArray(list) ? list.filter((one) => typeof one === "object" && one !== null) : []);

const withTexts = (hit: Hit): Hit => ({ ...hit, passage: { id: hit.passage.id, title: text(hit.passage.title), text: text(hit.passage.text) } });

function take(view: View, event: AgentEvent, at: number): void {
  switch (event.type) {
    case "started":
      view.episode = text(event.id);
      view.model = text(event.model);
      view.protocol = text(event.protocol);
      break;
    case "turn_started":
      turnOf(view, event.turn, at);
      break;
    case "think":
      turnOf(view, event.turn, at).thought += text(event.text);
      break;
    case "query":
      turnOf(view, event.turn, at).wrote += text(event.text);
      break;
    case "text":
      turnOf(view, event.turn, at).other += text(event.text);
      break;
    case "answer":
      view.answer += text(event.text);
      break;
    case "refusal":
      view.refusal = text(event.text).trim();
      break;
    case "search_started":
      begin(view, turnOf(view, event.turn, at), text(event.query), text(event.mode), event.k);
      break;
    case "search_finished":
      found(view, turnOf(view, event.turn, at), event);
      break;
    case "withdrawn":
      for (const search of view.searches) if (search.turn === event.search) search.withdrawn = true;
      turnOf(view, event.turn, at).notes.push({ kind: "withdrawn", text: "It set aside what it had found for “" + text(event.query) + "”." });
      break;
    case "tool_call":
      turnOf(view, event.turn, at).notes.push({ kind: "call", text: "It called the tool “" + text(event.name) + "” of its client" + withArguments(text(event.arguments)) });
      break;
    case "observation": {
      const turn = turnOf(view, event.turn, at);
      turn.read += Number(event.tokens) || 0;
      turn.cut ||= event.truncated === true;
      break;
    }
    case "invalid":
      turnOf(view, event.turn, at).notes.push({ kind: "invalid", text: "It wrote something that is neither a search nor an answer, and was told so." });
      break;
    case "budget":
      turnOf(view, view.turns.at(-1)?.number ?? 1, at).notes.push({ kind: "limit", text: LIMITS[event.kind] ?? "A limit was reached (" + text(event.kind) + ")." });
      break;
    case "finished":
      view.over = true;
      view.reason = text(event.reason);
      view.usage = event.usage ?? null;
      view.citations = objects(event.citations);
      if (!view.answer && event.answer) view.answer = text(event.answer);
      break;
    case "failed":
      view.failure = text(event.message) || "The run failed.";
      break;
    default:
      if (event.error) view.failure = text(event.error.message) || "The run failed.";
      else note(view, event as { type?: unknown }, at);
  }
}

const withArguments = (json: string) => (/^\s*(\{\s*\})?\s*$/.test(json) ? "." : " with " + json.trim() + ".");

// Shows an unknown event, for example one of a newer server, by its name.
function note(view: View, event: { type?: unknown }, at: number): void {
  const name = text(event.type).replaceAll("_", " ");
  if (name) turnOf(view, view.turns.at(-1)?.number ?? 1, at).notes.push({ kind: "other", text: name });
}

function begin(view: View, turn: Turn, query: string, mode: string, k: number | null): Search {
  const index = view.searches.length;
  const search: Search = {
    index, turn: turn.number, query, mode, k, hits: [], triples: [], done: false, cached: false, milliseconds: 0,
    snapshot: null, error: null, neutralised: 0, leftOut: 0, withdrawn: false, first: index,
  };
  view.searches.push(search);
  turn.searches.push(search);
  return search;
}

// Place of the search whose result was reused for `search`; its own place if no such search is shown. Failed searches
// and those with results left out are made anew.
function originOf(view: View, search: Search): number {
  const same = view.searches.find((one) =>
    one.index < search.index && one.query === search.query && one.mode === search.mode
    && one.done && !one.error && !one.leftOut && !one.withdrawn);
  return same ? same.first : search.index;
}

function found(view: View, turn: Turn, event: SearchFinished): void {
  const open = turn.searches.find((one) => !one.done);
  const search = open ?? begin(view, turn, text(event.query), text(event.mode), null);
  search.done = true;
  search.mode = text(event.mode) || search.mode;
  search.hits = objects(event.hits).filter((hit) => typeof hit.passage?.id === "string").map(withTexts);
  search.triples = objects(event.triples);
  search.cached = event.cached === true;
  search.milliseconds = Number(event.milliseconds) || 0;
  search.snapshot = event.snapshot;
  search.error = event.error ?? null;
  search.neutralised = Number(event.neutralised) || 0;
  search.leftOut = Number(event.cut?.left_out) || 0;
  if (search.cached) search.first = originOf(view, search);
}
