// A run: one question and everything that happened on the way to its answer. The events are kept as they came, so
// that a saved run is shown by the same code as a live one.
import type { AgentEvent, Cited, Hit, Triple, TripleHit, Usage, Walk } from "../api/types";

export const FORMAT = "waymark.run.1";

export interface Timed { at: number; event: AgentEvent }

export interface Settings { model: string; mode: string; k: number | null }

// Run in the form in which it is stored, shared and opened again.
export interface Run {
  format: typeof FORMAT;
  id: string;
  question: string;
  settings: Settings;
  // Milliseconds since 1970.
  started: number;
  events: Timed[];
  // Milliseconds from the question to the end; null while it runs.
  took: number | null;
  stopped?: boolean;
  failure?: string;
  // Facts of passages, by id, and details of graph searches, by their place among the searches.
  facts: Record<string, Triple[]>;
  walks: Record<number, Walk>;
  // Null if the user took it back.
  feedback?: "good" | "bad" | null;
  // Exchanges of the conversation before the question.
  before: { question: string; answer: string }[];
  // Number of the oldest ones that were not sent, because the conversation was too long for the model.
  forgotten?: number;
  // True for a run that came out of a file or a link, whose episode this server may not know.
  foreign?: boolean;
  // Name of the index that was searched, as the server's trace has it. A run of this page searched that of its policy.
  index?: string;
}

export interface Search {
  // Place among all searches of the run, from 0.
  index: number;
  turn: number;
  query: string;
  mode: string;
  k: number | null;
  hits: Hit[];
  triples: TripleHit[];
  done: boolean;
  cached: boolean;
  milliseconds: number;
  snapshot: number | null;
  error: string | null;
  neutralised: number;
  // Number of results that were too large to be kept.
  leftOut: number;
  withdrawn: boolean;
  // Place of the earlier search whose result was reused; its own place if there is none.
  first: number;
}

export interface Turn {
  number: number;
  thought: string;
  // Query as the policy wrote it, with its mark of a mode.
  wrote: string;
  other: string;
  searches: Search[];
  read: number;
  cut: boolean;
  notes: Note[];
  begun: number;
  ended: number;
}

export interface Note { kind: "limit" | "invalid" | "withdrawn" | "call" | "other"; text: string }

export interface View {
  episode: string;
  model: string;
  protocol: string;
  turns: Turn[];
  searches: Search[];
  answer: string;
  refusal: string;
  citations: Cited[];
  usage: Usage | null;
  reason: string;
  failure: string;
  over: boolean;
}

export function newRun(question: string, settings: Settings, before: Run["before"]): Run {
  const id = "r" + Date.now().toString(36) + Math.floor(Math.random() * 1e6).toString(36);
  return {
    format: FORMAT, id, question, settings, started: Date.now(), events: [], took: null, facts: {}, walks: {}, before,
  };
}

// Records an event. Consecutive deltas of the same kind and turn are joined, so that a run does not keep an event per
// token.
export function record(run: Run, event: AgentEvent): void {
  const last = run.events.at(-1)?.event as { type?: string; turn?: number; text?: string } | undefined;
  const next = event as { type?: string; turn?: number; text?: string };
  const delta = ["think", "query", "text", "answer"].includes(next.type ?? "");
  if (delta && last && last.type === next.type && last.turn === next.turn) last.text = (last.text ?? "") + (next.text ?? "");
  else run.events.push({ at: Date.now() - run.started, event: structuredClone(event) });
}
