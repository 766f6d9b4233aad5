// Runs whose traces the server keeps, of this page and of other clients of the same key.
import { get, inPath } from "../api/client";
import type { AgentEvent, Cited, Hit, TripleHit, Usage } from "../api/types";
import { type Run, newRun } from "../run/run";
import { BARE, forms, placeOf } from "../run/words";

export interface TraceSummary { id: string; question: string; model: string; created: number }

interface Trace {
  id: string;
  created: number;
  status: "finished" | "failed" | "cancelled";
  model: string;
  protocol: string;
  index?: string;
  messages: { role: string; content: string }[];
  options: { mode: string | null; k: number | null };
  answer: string | null;
  error: { message: string } | null;
  finish_reason: string | null;
  usage: Usage;
  // Without thoughts in a trace that an older server recorded.
  actions: { turn: number; thought?: string; action: { type: string; name?: string; arguments?: string; text?: string } }[];
  searches: {
    turn: number; query: string; mode: string; snapshot: number | null; hits: Hit[]; triples: TripleHit[]; cached: boolean; neutralised: number;
    seconds: number; error: string | null; withdrawn: number | null; cut?: { left_out: number; limit: number };
  }[];
  timings: { total: number };
}

export const listTraces = async () => (await get<{ data: TraceSummary[] }>("/v1/traces?limit=20")).data;

export async function traceAsRun(id: string): Promise<Run> {
  return runOf(await get<Trace>("/v1/traces/" + inPath(id)));
}

function runOf(trace: Trace): Run {
  const { messages } = trace;
  const question = messages.at(-1)?.content ?? "";
  const before = messages.slice(0, -1).flatMap((message, at) =>
    (message.role === "user" && messages[at + 1]?.role === "assistant" ? [{ question: message.content, answer: messages[at + 1].content }] : []));
  const run = newRun(question, { model: trace.model, mode: trace.options.mode ?? "", k: trace.options.k }, before);
  return {
    ...run,
    started: trace.created * 1000,
    took: Math.round(trace.timings.total * 1000),
    index: trace.index,
    events: eventsOf(trace, question).map((event) => ({ at: 0, event })),
    ...(trace.status === "finished" ? {} : { failure: trace.error?.message ?? CANCELED }),
  };
}

const CANCELED = "It was stopped, or its client went away, before it was complete.";

// Text of a refusal without an explanation (`agent/src/run/acting.rs`).
const REFUSED = "The question cannot be answered.";

function eventsOf(trace: Trace, question: string): AgentEvent[] {
  const events: AgentEvent[] = [{ type: "started", id: trace.id, model: trace.model, protocol: trace.protocol, question, prompt_tokens: trace.usage.prompt_tokens }];
  const { actions, searches } = trace;
  const turns = Math.max(0, ...[...searches, ...actions].map((one) => one.turn), ...searches.map((one) => one.withdrawn ?? 0));
  for (let turn = 1; turn <= turns; turn++) {
    const acted = actions.filter((one) => one.turn === turn);
    for (const { thought } of acted) if (thought) events.push({ type: "think", turn, text: thought });
    for (const search of searches.filter((one) => one.turn === turn)) {
      const { query, mode, hits, triples, snapshot, cached, neutralised, error, cut } = search;
      events.push({ type: "search_started", turn, query, mode, k: hits.length });
      events.push({ type: "search_finished", turn, query, mode, hits, triples, snapshot, cached, neutralised, milliseconds: search.seconds * 1000, error: error ?? undefined, cut });
    }
    for (const { turn: search, query } of searches.filter((one) => one.withdrawn === turn)) events.push({ type: "withdrawn", turn, search, query });
    for (const { action } of acted) {
      if (action.type === "call") events.push({ type: "tool_call", turn, name: action.name ?? "", arguments: action.arguments ?? "" });
      if (action.type === "refuse") events.push({ type: "refusal", text: action.text || REFUSED });
    }
  }
  if (trace.answer) events.push({ type: "answer", text: trace.answer });
  if (trace.status === "finished") {
    const citations = trace.answer ? stating(trace.answer, searches.flatMap((search) => search.hits)) : [];
    events.push({ type: "finished", reason: trace.finish_reason ?? "stop", answer: trace.answer, usage: trace.usage, turns, searches: searches.length, citations });
  }
  return events;
}

// Traces hold no citations. The passages that state the whole answer are found by the first part of the server's rule.
function stating(answer: string, hits: Hit[]): Cited[] {
  const claimed = forms(answer);
  if (claimed.every((form) => BARE.has(form))) return [];
  const text = [...answer];
  const start = text.length - [...answer.trimStart()].length;
  const end = [...answer.trimEnd()].length;
  const known = new Set<string>();
  return hits.flatMap(({ passage: { id, title, text: body } }) => {
    const states = placeOf(claimed, forms(body)) >= 0 || placeOf(claimed, forms(title)) >= 0;
    if (!states || known.has(id)) return [];
    known.add(id);
    return [{ start, end, passage: id, title, stated: true }];
  });
}
