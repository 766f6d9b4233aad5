// State of the comparison: one question, asked with two settings.
import { signal } from "@preact/signals";
import { firstPolicy, index } from "../api/server";
import { Live } from "../run/live";
import type { Settings } from "../run/run";

export const question = signal("");
export const sides = signal<[Settings, Settings]>([
  { model: "", mode: "passage", k: null },
  { model: "", mode: "graph", k: null },
]);
export const lives = signal<(Live | null)[]>([null, null]);

// Settings that a side is asked with: the first policy where none is chosen, and the policy's choice in place of a kind of
// search that the index does not have.
export function settingsOf(side: Settings): Settings {
  const known = !index.value || index.value.modes.includes(side.mode);
  return { ...side, model: side.model || firstPolicy.value?.id || "", mode: known ? side.mode : "" };
}

export function compareWith(text: string): void {
  // Runs that are no longer shown would go on, and nothing could stop them.
  stop();
  question.value = text;
  lives.value = [null, null];
}

export const running = () => lives.value.some((live) => live?.running.value);

export function stop(): void {
  for (const live of lives.value) live?.stop();
}

export async function compare(): Promise<void> {
  const text = question.value.trim();
  if (!text || running()) return;
  const both = sides.value.map((side) => Live.ask(text, settingsOf(side), []));
  lives.value = both;
  await Promise.all(both.map((live) => live.perform()));
}
