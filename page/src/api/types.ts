// Wire types, as the server sends them. Everything in them is text from outside.

export interface Passage { id: string; title: string; text: string }
export interface ListRank { rank: number; score: number }
export interface PathEdge { phrase: string; weight: number }
export interface GraphRank { rank: number; mass: number; reset: number; via?: PathEdge[] }
export interface HitPath { bm25?: ListRank; dense?: ListRank; graph?: GraphRank }
export interface Hit { rank: number; score: number; passage: Passage; path: HitPath }
export interface Triple { subject: string; relation: string; object: string }
export interface TripleHit extends Triple { rank: number; score: number; passages: string[] }
export interface Cited { start: number; end: number; passage: string; title: string; stated: boolean }

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  reasoning_tokens?: number;
  environment_tokens: number;
  cached_tokens?: number;
  searches: number;
  search_ms: number;
}

export type AgentEvent =
  | { type: "started"; id: string; model: string; protocol: string; question: string; prompt_tokens: number }
  | { type: "turn_started"; turn: number }
  | { type: "think" | "query" | "text"; turn: number; text: string }
  | { type: "answer"; text: string }
  | { type: "refusal"; text: string }
  | { type: "search_started"; turn: number; query: string; entities?: string[]; mode: string; k: number }
  | SearchFinished
  | { type: "withdrawn"; turn: number; search: number; query: string }
  | ToolCall
  | { type: "observation"; turn: number; text: string; tokens: number; truncated: boolean }
  | { type: "invalid"; turn: number; message: string }
  | { type: "budget"; kind: string }
  | Finished
  | { type: "failed"; message: string; code: string }
  | { type?: undefined; error: { message: string; code?: string } };

// A call of a tool of the client, which ends the run. The arguments are a JSON object as text.
export interface ToolCall { type: "tool_call"; turn: number; name: string; arguments: string }

export interface SearchFinished {
  type: "search_finished";
  turn: number;
  query: string;
  mode: string;
  hits: Hit[];
  triples?: TripleHit[];
  snapshot: number | null;
  cached: boolean;
  milliseconds: number;
  neutralised: number;
  // Results that the policy read, but that were too large to be kept here.
  cut?: { left_out: number; limit: number };
  error?: string;
}

export interface Finished {
  type: "finished";
  reason: string;
  answer: string | null;
  usage: Usage;
  turns: number;
  searches: number;
  citations: Cited[];
}

// `index` is the index that the policy names; absent if it names none.
export interface Model { id: string; protocol: string; parent: string; index?: string }

export interface IndexInfo {
  name: string | null;
  snapshot: number;
  corpus: string;
  passages: number;
  embedder: { id: string; dims: number } | null;
  modes: string[];
  graph: { source: string; phrases: number; facts: number; triples: number; edges: number } | null;
  bytes: number;
  committed: number | null;
  writable: boolean;
  stale: boolean;
}

export interface Walk {
  facts: (Triple & { similarity: number; score: number; kept: boolean })[];
  phrases: { phrase: string; passages: number; linking: number; weight: number }[];
  fallback: boolean;
}

export interface Replay {
  answer: string | null;
  answer_changed: boolean | null;
  citations: Cited[];
  finish_reason: string | null;
  searches: { made: string; query: string; equal: boolean }[];
  trace: string | null;
}
