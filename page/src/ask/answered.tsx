// One question and its answer: the answer first, then the steps to it.
import { useSignal } from "@preact/signals";
import type { Live } from "../run/live";
import type { View } from "../run/run";
import { count, parseQuery, seconds } from "../run/query";
import { type Source, sourcesOf } from "../run/sources";
import { Markdown } from "../text/markdown";
import { mark } from "../text/markers";
import { Path } from "../see/path";
import { Actions } from "./actions";
import { Citation } from "./citation";
import { Hops } from "./hops";
import { Sources } from "./sources";
import { Timeline } from "./timeline";

export function Answered({ live, last }: { live: Live; last: boolean }) {
  const view = live.view.value;
  const running = live.running.value;
  const sources = sourcesOf(view);
  const unfolded = useSignal(false);
  const searched = view.searches.length > 0;
  return (
    <article class="answered" aria-label={"Question: " + live.run.question}>
      <h2 class="question" dir="auto">{live.run.question || "A run without its question"}</h2>
      <AnswerText live={live} view={view} sources={sources} running={running} />
      <Trouble live={live} view={view} running={running} last={last} />
      {!running && <Hops run={live.run} view={view} />}
      <Sources live={live} sources={sources} />
      {(!running || view.answer) && <Actions live={live} sources={sources} last={last} />}
      {searched && <Path live={live} />}
      {view.turns.length > 0 && (
        <details class="steps" open={unfolded.value} onToggle={(event) => { unfolded.value = event.currentTarget.open; }}>
          <summary><Summary live={live} view={view} running={running} /></summary>
          <Timeline live={live} view={view} />
        </details>
      )}
    </article>
  );
}

function Summary({ live, view, running }: { live: Live; view: View; running: boolean }) {
  if (running) return <span>{doing(view)}</span>;
  const distinct = view.searches.filter((one) => one.first === one.index).length;
  const repeated = view.searches.length - distinct;
  const parts = [
    distinct ? count(distinct, "search", "searches") + (repeated ? " and " + count(repeated, "repeat") : "") : "no search",
    seconds(live.run.took ?? 0),
    view.usage && count(view.usage.completion_tokens, "token") + " written",
  ];
  return <><span class="summary-title">Step by step</span> <span class="dim">{parts.filter(Boolean).join(" · ")}</span></>;
}

export function doing(view: View): string {
  const turn = view.turns.at(-1);
  const open = view.searches.at(-1);
  if (view.answer) return "Answering …";
  if (!turn) return "Starting …";
  if (open && !open.done) return "Searching for “" + open.query + "” …";
  const { query } = parseQuery(turn.wrote);
  if (query && !turn.searches.length) return "Asking for “" + query + "” …";
  if (open?.done && turn.searches.includes(open)) return "Reading " + count(open.hits.length, "passage") + " …";
  return "Thinking …";
}

interface Props { live: Live; view: View; sources: Source[]; running: boolean }

function AnswerText({ live, view, sources, running }: Props) {
  if (view.refusal && !view.answer) return <p class="answer short" dir="auto">{view.refusal}</p>;
  if (!view.answer) {
    if (!running) return null;
    const thought = view.turns.at(-1)?.thought.trim() || view.turns.at(-2)?.thought.trim() || "";
    return (
      <div class="answer pending">
        <p class="doing"><span class="pulse" aria-hidden="true" /> <span role="status">{doing(view)}</span></p>
        {thought && <p class="aloud dim" dir="auto">{thought}</p>}
      </div>
    );
  }
  const numbers = new Map(sources.map((source) => [source.passage.id, source]));
  const places = view.citations.flatMap((cited) => {
    const source = numbers.get(cited.passage);
    return source ? [{ end: cited.end, numbers: [source.number] }] : [];
  });
  const cite = (found: number[]) => (
    <span class="citations">
      {found.map((number) => sources[number - 1] && <Citation key={number} live={live} source={sources[number - 1]} />)}
    </span>
  );
  const size = view.answer.length <= 60 ? " short" : view.answer.length <= 280 ? " medium" : "";
  return (
    <div class={"answer" + size} aria-busy={running} aria-live={running ? "off" : "polite"}>
      <Markdown text={mark(view.answer, places).trim()} cite={cite} />
    </div>
  );
}

// Explains why the answer is missing or incomplete, and what to do.
function Trouble({ live, view, running, last }: { live: Live; view: View; running: boolean; last: boolean }) {
  if (running) return null;
  const again = last && !live.run.foreign ? " You can try again below." : "";
  if (live.run.stopped) return <p class="notice">You stopped this answer{view.answer ? "; it is not complete." : "."}</p>;
  if (view.failure) return <p class="notice bad" role="alert"><strong>{view.answer ? "The answer broke off." : "There is no answer."}</strong> {view.failure}{again}</p>;
  if (view.reason === "length") return <p class="notice">The answer reached its limit of length and is not complete.</p>;
  if (view.reason === "time") return <p class="notice">The time limit was reached before the answer was complete.</p>;
  if (view.reason === "called") return <p class="notice">The policy called a tool of its client in place of an answer.</p>;
  if (!view.answer.trim() && !view.refusal) return <p class="notice">The policy found no answer: it stopped without one.</p>;
  if (view.searches.length && !view.citations.length && view.answer.trim()) {
    return <p class="dim unsupported">No passage that was found contains the words of this answer, so check it before you rely on it.</p>;
  }
  return null;
}
