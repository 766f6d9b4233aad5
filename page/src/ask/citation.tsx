// The number of a source in an answer: shows its passage on hover, and keeps it open on a click, a tap or Enter.
import { useRef } from "preact/hooks";
import type { Live } from "../run/live";
import { type Source, titleOf } from "../run/sources";
import { card, hover, pin } from "./card-state";

export function Citation({ live, source }: { live: Live; source: Source }) {
  const button = useRef<HTMLButtonElement>(null);
  const open = () => ({ live, passage: source.passage, claims: source.claims, number: source.number, anchor: button.current!, pinned: false });
  const shown = card.value?.anchor === button.current && card.value?.number === source.number && card.value !== null;
  return (
    <button
      ref={button} class="citation" type="button" aria-expanded={shown} aria-label={"Source " + source.number + ": " + titleOf(source.passage)}
      onClick={() => pin(open())} onMouseEnter={() => hover(open())} onMouseLeave={() => hover(null)}
    >{source.number}</button>
  );
}
