// What a run contributes to a conversation or a comparison.
import type { Run, View } from "./run";

// Reasons for the end of a run without a complete answer.
const INCOMPLETE = ["length", "time", "called"];

// The answer or refusal of a run that came to its own end; empty for any other run.
export function completeAnswer(run: Run, { failure, reason, answer, refusal }: View): string {
  return run.stopped || failure || INCOMPLETE.includes(reason) ? "" : (answer || refusal).trim();
}
