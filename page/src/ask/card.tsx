// A passage: beside its citation on a wide screen, at the bottom of a narrow one.
import { useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { offline } from "../api/server";
import type { Outcome } from "../run/counterfactual";
import { without } from "../run/counterfactual";
import { modeInWords, ordinal } from "../run/query";
import { occurrences, titleOf } from "../run/sources";
import { support } from "../run/words";
import { Icon } from "../shell/icon";
import { address } from "../shell/route";
import { MarkedText } from "../text/marked-text";
import { type Card, card, close, holdHover, hover } from "./card-state";

export function PassageCard() {
  const open = card.value;
  return open ? <Shown key={open.passage.id + open.live.run.id} open={open} /> : null;
}

function Shown({ open }: { open: Card }) {
  const box = useRef<HTMLDivElement>(null);
  const { live, passage, claims, number, anchor, pinned } = open;
  useLayoutEffect(() => {
    if (box.current) place(box.current, anchor);
  });
  useLayoutEffect(() => {
    if (pinned) box.current?.focus({ preventScroll: true });
  }, [pinned]);
  const ranges = claims.flatMap((claim) => support(claim, passage.text)).sort((a, b) => a.start - b.start);
  const disjoint = ranges.filter((range, index) => !index || range.start >= ranges[index - 1].end);
  return (
    <div
      ref={box} class="card" id="card" role="dialog" aria-labelledby="card-title" tabIndex={-1}
      onMouseEnter={holdHover} onMouseLeave={() => hover(null)}
      onKeyDown={(event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } }}
    >
      <div class="card-head">
        <h3 id="card-title" dir="auto">{number !== null && <span class="number">{number}</span>} {titleOf(passage)}</h3>
        <button class="quiet" aria-label="Close" onClick={close}><Icon name="close" /></button>
      </div>
      <p class="passage-text" dir="auto" tabIndex={0}><MarkedText text={passage.text} ranges={disjoint} /></p>
      <Found open={open} />
      {!offline && !live.run.foreign && <Actions open={open} />}
    </div>
  );
}

function Found({ open: { live, passage } }: { open: Card }) {
  const found = occurrences(live.view.value, passage.id);
  return (
    <ul class="found dim">
      {found.map(({ search, hit }) => (
        <li>
          Search {search.index + 1} for “<bdi>{search.query}</bdi>” found it {ordinal(hit.rank)} of {search.hits.length}, {modeInWords(search.mode)}
          <span class="ranks">{ranksOf(hit.path)}</span>
        </li>
      ))}
    </ul>
  );
}

const ranksOf = ({ bm25, dense, graph }: { bm25?: { rank: number }; dense?: { rank: number }; graph?: { rank: number } } = {}) =>
  [bm25 && "words " + ordinal(bm25.rank), dense && "meaning " + ordinal(dense.rank), graph && "graph " + ordinal(graph.rank)]
    .filter(Boolean).map((part) => " · " + part).join("");

function Actions({ open: { live, passage } }: { open: Card }) {
  const outcome = useSignal<Outcome | null>(null);
  const asking = useSignal(false);
  const view = live.view.value;
  const again = async () => {
    asking.value = true;
    outcome.value = await without(view.episode, [passage.id]);
    asking.value = false;
  };
  return (
    <div class="card-actions">
      <div class="row">
        <button disabled={asking.value || !view.over || !view.episode} onClick={again}>
          {asking.value ? "Answering without it …" : "Answer without this passage"}
        </button>
        {!live.indexOf(view) && <a class="button quiet" href={address("explore", "passage:" + passage.id)} onClick={() => { card.value = null; }}>Explore</a>}
      </div>
      <div role="status">{outcome.value && <Effect outcome={outcome.value} before={view.answer.trim()} />}</div>
    </div>
  );
}

export function Effect({ outcome, before }: { outcome: Outcome; before: string }) {
  if (outcome.failure) return <p class="bad">{outcome.failure}</p>;
  const changed = outcome.changed ?? outcome.answer !== before;
  if (!changed) return <p><strong>The answer stays the same.</strong> It does not depend on this passage alone.</p>;
  return (
    <p>
      <strong>The answer changes.</strong>{" "}
      {outcome.answer ? <>Without this passage it is <ins dir="auto">{outcome.answer}</ins></> : "Without this passage there is none."}
    </p>
  );
}

// Beside the anchor where there is room; the style sheet puts it at the bottom of narrow screens.
function place(box: HTMLElement, anchor: HTMLElement): void {
  if (matchMedia("(max-width: 44rem)").matches) {
    box.style.left = box.style.top = "";
    return;
  }
  const at = anchor.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const left = Math.max(12, Math.min(at.left - 24, document.documentElement.clientWidth - width - 12));
  const below = at.bottom + 8;
  const top = below + height < innerHeight ? below : Math.max(12, at.top - height - 8);
  box.style.left = left + scrollX + "px";
  box.style.top = top + scrollY + "px";
}
