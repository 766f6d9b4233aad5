// A question with the conversation before it, at `/v1/chat/completions`; its chunks become events of an episode.
import { BROKEN, ragOptions, type Asked } from "./agent";
import { Unreachable, post } from "./client";
import { messages } from "./sse";
import type { AgentEvent, Cited, Usage } from "./types";

export interface Said { role: "user" | "assistant"; content: string }

interface Chunk {
  id: string;
  model: string;
  choices: {
    delta: { content?: string; reasoning_content?: string; refusal?: string; rag?: { trace?: AgentEvent[]; citations?: Cited[] } };
    finish_reason: string | null;
  }[];
  usage?: (Usage & { prompt_tokens_details?: { cached_tokens: number } }) | null;
  error?: { message: string; code?: string };
}

export async function* runChat(asked: Asked, before: Said[], signal: AbortSignal): AsyncGenerator<AgentEvent> {
  const response = await post("/v1/chat/completions", {
    model: asked.model,
    stream: true,
    stream_options: { include_usage: true },
    ...(asked.seed === null ? {} : { seed: asked.seed }),
    rag: { ...ragOptions(asked), trace: true, citations: true },
    messages: [...before, { role: "user", content: asked.question }],
  }, signal);
  const translate = translator(asked);
  try {
    for await (const { data } of messages(response.body!)) {
      if (data === "[DONE]") {
        yield translate.finished();
        return;
      }
      yield* translate.chunk(JSON.parse(data) as Chunk);
    }
  } catch (error) {
    if (signal.aborted || !(error instanceof TypeError)) throw error;
  }
  throw new Unreachable(BROKEN);
}

function translator(asked: Asked) {
  let begun = false;
  let turn = 1;
  let searched = false;
  let searches = 0;
  let answer = "";
  let reason = "stop";
  let citations: Cited[] = [];
  let usage: Usage = { prompt_tokens: 0, completion_tokens: 0, environment_tokens: 0, searches: 0, search_ms: 0 };

  function* chunk(chunk: Chunk): Generator<AgentEvent> {
    if (chunk.error) yield { type: "failed", message: chunk.error.message, code: chunk.error.code ?? "" };
    if (!begun && chunk.id) {
      begun = true;
      yield { type: "started", id: chunk.id, model: chunk.model, protocol: "", question: asked.question, prompt_tokens: 0 };
    }
    if (chunk.usage) usage = { ...chunk.usage, cached_tokens: chunk.usage.prompt_tokens_details?.cached_tokens };
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { delta } = choice;
    if (delta.reasoning_content) yield* reasoning(delta.reasoning_content);
    for (const event of delta.rag?.trace ?? []) yield step(event);
    if (delta.content) {
      answer += delta.content;
      yield { type: "answer", text: delta.content };
    }
    if (delta.refusal) yield { type: "refusal", text: delta.refusal };
    if (delta.rag?.citations) citations = delta.rag.citations;
    if (choice.finish_reason) reason = choice.finish_reason;
  }

  // Chat joins the thoughts of all turns; a turn ends with its search.
  function* reasoning(text: string): Generator<AgentEvent> {
    if (searched) {
      searched = false;
      turn += 1;
    }
    yield { type: "think", turn, text };
  }

  function step(event: AgentEvent): AgentEvent {
    if (event.type === "search_started") {
      turn = event.turn;
      searches += 1;
    }
    if (event.type === "search_finished" || event.type === "observation" || event.type === "invalid") {
      turn = event.turn;
      searched = true;
    }
    return event;
  }

  const finished = (): AgentEvent => ({
    type: "finished", reason, answer: answer || null, usage, turns: turn, searches, citations,
  });
  return { chunk, finished };
}
