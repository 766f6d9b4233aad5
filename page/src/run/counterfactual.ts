// Replay of a recorded run over an index without some of its passages.
import { Refused, explain, inPath, send } from "../api/client";
import type { Replay } from "../api/types";

export interface Outcome {
  // Null where the server does not say.
  changed: boolean | null;
  answer: string;
  failure: string;
}

export async function without(episode: string, passages: string[]): Promise<Outcome> {
  try {
    const replay = await send<Replay>("/v1/traces/" + inPath(episode) + "/replay", { mode: "free", without: passages });
    return { changed: replay.answer_changed, answer: (replay.answer ?? "").trim(), failure: "" };
  } catch (error) {
    const gone = error instanceof Refused && error.status === 404;
    const failure = gone ? "The server no longer has the record of this answer, so it cannot be run again." : explain(error);
    return { changed: null, answer: "", failure };
  }
}
