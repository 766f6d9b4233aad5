// The steps of a run: what was thought, asked, found and read.
import { useSignal } from "@preact/signals";
import type { Hit } from "../api/types";
import type { Live } from "../run/live";
import type { Search, Turn, View } from "../run/run";
import { count, modeInWords, parseQuery, seconds } from "../run/query";
import { readIn, titleOf } from "../run/sources";
import { pin } from "./card-state";

export function Timeline({ live, view }: { live: Live; view: View }) {
  const used = readIn(view);
  return (
    <ol class="timeline">
      {view.turns.map((turn, index) => <TurnStep key={turn.number} live={live} turn={turn} used={used} last={index === view.turns.length - 1} view={view} />)}
      {view.usage && <li class="step total dim">{totals(live, view)}</li>}
    </ol>
  );
}

function totals(live: Live, view: View): string {
  const usage = view.usage!;
  const read = (usage.prompt_tokens || 0) + (usage.environment_tokens || 0);
  return [
    "In all " + seconds(live.run.took ?? 0),
    usage.search_ms ? seconds(usage.search_ms) + " of it searching" : "",
    count(usage.completion_tokens, "token") + " written",
    count(read, "token") + " read",
    view.model,
  ].filter(Boolean).join(" · ");
}

interface Props { live: Live; turn: Turn; used: Map<string, number>; last: boolean; view: View }

function TurnStep({ live, turn, used, last, view }: Props) {
  const thought = turn.thought.trim();
  const other = turn.other.trim();
  const took = turn.ended - turn.begun;
  return (
    <li class="step">
      {thought && <p class="thought" dir="auto">{thought}</p>}
      {other && <p class="thought" dir="auto">{other}</p>}
      {turn.searches.map((search) => <SearchStep key={search.index} live={live} search={search} turn={turn} used={used} />)}
      {turn.notes.map((note) => <p class={"note " + note.kind}>{note.text}</p>)}
      {last && view.over && view.answer.trim() && <p class="step-answer">Answered.</p>}
      {(turn.read > 0 || took > 0) && (
        <p class="facts dim">
          {[took > 0 && seconds(took), turn.read > 0 && "then read " + count(turn.read, "token") + (turn.cut ? ", shortened to fit" : "")].filter(Boolean).join(" · ")}
        </p>
      )}
    </li>
  );
}

function SearchStep({ live, search, turn, used }: { live: Live; search: Search; turn: Turn; used: Map<string, number> }) {
  const wrote = parseQuery(turn.wrote).mode;
  const other = wrote && wrote !== search.mode;
  const repeated = search.first !== search.index;
  return (
    <div class={"search" + (search.withdrawn ? " withdrawn" : "")}>
      <p class="search-title">
        Searched for “<bdi>{search.query}</bdi>” {modeInWords(search.mode)}
        {other && <span class="dim"> (the policy had asked for a search {modeInWords(wrote)}; the setting above decided)</span>}
      </p>
      {search.error && <p class="note bad">The search failed: {search.error}</p>}
      {repeated
        ? <p class="dim">The same as search {search.first + 1}, so its passages came from memory.</p>
        : <Found live={live} search={search} used={used} />}
      {search.triples.length > 0 && !repeated && (
        <ul class="triples">{search.triples.slice(0, 20).map((triple) => <li dir="auto">{triple.subject} · {triple.relation} · {triple.object}</li>)}</ul>
      )}
      <p class="facts dim">
        {[
          "Search " + (search.index + 1),
          search.done && !repeated && seconds(search.milliseconds),
          search.withdrawn && "set aside later",
          search.leftOut > 0 && count(search.leftOut, "more result") + " read, but too large to be kept here",
          search.neutralised > 0 && "control words in the passages were shown to the model as plain text",
        ].filter(Boolean).join(" · ")}
      </p>
    </div>
  );
}

const SHOWN = 5;

function Found({ live, search, used }: { live: Live; search: Search; used: Map<string, number> }) {
  const isUsed = (hit: Hit) => used.get(hit.passage.id) === search.index;
  const all = useSignal(false);
  if (!search.done) return <p class="dim">Searching …</p>;
  if (!search.hits.length) return search.error || search.triples.length || search.leftOut ? null : <p class="dim">Nothing was found.</p>;
  const shown = all.value ? search.hits : search.hits.filter((hit) => hit.rank <= SHOWN || isUsed(hit));
  const rest = search.hits.length - shown.length;
  return (
    <>
      <ul class="hits">{shown.map((hit) => <HitItem key={hit.passage.id} live={live} hit={hit} used={isUsed(hit)} />)}</ul>
      {rest > 0 && <button class="quiet" onClick={() => { all.value = true; }}>{count(rest, "more passage")}</button>}
    </>
  );
}

function HitItem({ live, hit, used }: { live: Live; hit: Hit; used: boolean }) {
  const claims = live.view.value.citations.some((one) => one.passage === hit.passage.id) ? [live.view.value.answer] : [];
  return (
    <li class={used ? "used" : ""}>
      <button class="hit" onClick={(event) => pin({ live, passage: hit.passage, claims, number: null, anchor: event.currentTarget, pinned: true })}>
        <span class="rank">{hit.rank}</span> <bdi>{titleOf(hit.passage)}</bdi>{used && <span class="tag">used</span>}
      </button>
    </li>
  );
}
