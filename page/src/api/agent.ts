// One question at `/v1/agent`, as a stream that is resumed when its connection breaks.
import { Refused, Unreachable, call, post } from "./client";
import { messages } from "./sse";
import type { AgentEvent } from "./types";

export interface Said { role: "user" | "assistant"; content: string }

export interface Asked {
  question: string;
  // Messages of the conversation before the question.
  history: Said[];
  // Empty: the server's first policy.
  model: string;
  // Empty: as the policy chooses.
  mode: string;
  k: number | null;
  seed: number | null;
  // False for a policy that does not search. It refuses the options of searches.
  searches: boolean;
}

// Pauses before the attempts to resume a broken stream, in milliseconds. Their number limits the attempts in a row.
const PAUSES = [300, 1000, 2500, 5000];

// Statuses after which an attempt is repeated: the key has too many requests, or the server behind a proxy is away, as
// during a restart.
const RETRIED = [429, 502, 503, 504];

// Longest pause that a server may ask for, in milliseconds. By default a stream waits 30 s for its client.
const LONGEST_PAUSE = 25_000;

const BROKEN = "The connection to the server was lost before the answer was complete.";

function ragOptions({ mode, k, searches }: Asked): Record<string, unknown> {
  const rag: Record<string, unknown> = {};
  if (searches && mode) rag.mode = mode;
  if (searches && k) rag.k = k;
  return rag;
}

export async function* runAgent(asked: Asked, signal: AbortSignal): AsyncGenerator<AgentEvent> {
  const body: Record<string, unknown> = { question: asked.question, stream: true, rag: ragOptions(asked) };
  if (asked.history.length) body.history = asked.history;
  if (asked.model) body.model = asked.model;
  if (asked.seed !== null) body.seed = asked.seed;
  const response = await start(body, signal);
  const address = response.headers.get("content-location");
  if (!address) return yield* events(response, "", signal);
  try {
    yield* events(response, address, signal);
  } finally {
    // The server would compute on for a while, because a client whose connection broke may come back.
    if (signal.aborted) void call(address, { method: "DELETE" }).catch(() => {});
  }
}

// Yields the events of a stream, and resumes it at `address` if its connection breaks.
async function* events(first: Response, address: string, signal: AbortSignal): AsyncGenerator<AgentEvent> {
  let response = first;
  let last = "";
  let failures = 0;
  for (;;) {
    try {
      for await (const { id, data } of messages(response.body!)) {
        last = id || last;
        failures = 0;
        const event = JSON.parse(data) as AgentEvent;
        yield event;
        if (isLast(event)) return;
      }
    } catch (error) {
      if (signal.aborted) throw error;
    }
    // The stream ended without a last event, so its connection broke.
    if (!address) throw new Unreachable(BROKEN);
    response = await again(address, last, signal, () => failures++);
  }
}

// True if a server would accept the same stream if it were not resumable: it has no room for another one, or is set up
// to have none.
const refusesResumable = ({ status, param, message }: Refused) =>
  (status === 400 ? param === "resumable" : [429, 503].includes(status) && /stream/.test(message));

// Starts a stream, one that cannot be resumed if the server refuses others.
async function start(body: Record<string, unknown>, signal: AbortSignal): Promise<Response> {
  try {
    return await post("/v1/agent", { ...body, resumable: true }, signal);
  } catch (error) {
    if (error instanceof Refused && refusesResumable(error)) return await post("/v1/agent", body, signal);
    throw error;
  }
}

async function again(address: string, last: string, signal: AbortSignal, failed: () => number): Promise<Response> {
  let atLeast = 0;
  for (;;) {
    const pause = PAUSES[failed()];
    if (pause === undefined) throw new Unreachable(BROKEN);
    await wait(Math.max(pause, atLeast), signal);
    let response: Response;
    try {
      response = await call(address + "?after=" + encodeURIComponent(last || "0"), { signal });
    } catch (error) {
      if (signal.aborted) throw error;
      // A server that was restarted knows nothing of the stream.
      if (error instanceof Refused && !RETRIED.includes(error.status)) throw new Unreachable(BROKEN);
      atLeast = error instanceof Refused ? Math.min(error.retryAfter, LONGEST_PAUSE) : 0;
      continue;
    }
    if (response.status === 204 || !response.body) throw new Unreachable(BROKEN);
    return response;
  }
}

const isLast = (event: AgentEvent) => event.type === undefined || event.type === "finished" || event.type === "failed";

export function wait(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
