// The card with a passage that is open, beside what it was opened from.
import { signal } from "@preact/signals";
import type { Passage } from "../api/types";
import type { Live } from "../run/live";

export interface Card {
  live: Live;
  passage: Passage;
  // Segments of the answer that the passage supports.
  claims: string[];
  number: number | null;
  anchor: HTMLElement;
  // False while a pointer only hovers over the anchor.
  pinned: boolean;
}

export const card = signal<Card | null>(null);
let timer = 0;

export function hover(next: Card | null): void {
  clearTimeout(timer);
  if (card.value?.pinned) return;
  timer = window.setTimeout(() => { if (!card.value?.pinned) card.value = next; }, next ? 120 : 220);
}

export function holdHover(): void {
  clearTimeout(timer);
}

export function pin(next: Card): void {
  clearTimeout(timer);
  const same = card.value?.pinned && card.value.anchor === next.anchor;
  card.value = same ? null : { ...next, pinned: true };
}

export function close(): void {
  const anchor = card.value?.pinned ? card.value.anchor : null;
  card.value = null;
  anchor?.focus();
}
