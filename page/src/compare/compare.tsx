// The view Compare: two policies, modes or adapters side by side on one question.
import { policies, policyNamed, searches, index } from "../api/server";
import { doing } from "../ask/answered";
import { PassageCard } from "../ask/card";
import { Citation } from "../ask/citation";
import { passagesIn } from "../ask/composer";
import { Sources } from "../ask/sources";
import { Timeline } from "../ask/timeline";
import { completeAnswer } from "../run/answer";
import type { Live } from "../run/live";
import type { Settings } from "../run/run";
import { count, seconds } from "../run/query";
import { sourcesOf } from "../run/sources";
import { Icon } from "../shell/icon";
import { Markdown } from "../text/markdown";
import { mark } from "../text/markers";
import { compare, lives, question, running, settingsOf, sides, stop } from "./state";

export function Compare() {
  const send = (event: Event) => {
    event.preventDefault();
    void compare();
  };
  return (
    <section class="compare">
      <h1>Compare</h1>
      <p class="lead">One question, two ways to answer it: another policy, another adapter, or another kind of search.</p>
      <form class="composer" onSubmit={send}>
        <label class="hidden" for="compared">Question</label>
        <div class="field">
          <input id="compared" dir="auto" value={question.value} placeholder="Question for both" onInput={(event) => { question.value = event.currentTarget.value; }} />
          {running()
            ? <button type="button" class="primary round" aria-label="Stop" onClick={stop}><Icon name="stop" /></button>
            : <button class="primary round" aria-label="Compare" disabled={!question.value.trim()}><Icon name="send" /></button>}
        </div>
      </form>
      <div class="pair">
        {[0, 1].map((at) => <SideOf key={at} at={at as 0 | 1} />)}
      </div>
      <Figures />
      <PassageCard />
    </section>
  );
}

function SideOf({ at }: { at: 0 | 1 }) {
  const name = at ? "B" : "A";
  const live = lives.value[at];
  return (
    <article class="half" aria-label={"Side " + name}>
      <SideOptions at={at} name={name} />
      {live ? <Result live={live} /> : <p class="dim">The answer appears here.</p>}
    </article>
  );
}

function SideOptions({ at, name }: { at: 0 | 1; name: string }) {
  const side = sides.value[at];
  const change = (part: Partial<Settings>) => {
    const next: [Settings, Settings] = [...sides.value];
    next[at] = { ...side, ...part };
    sides.value = next;
  };
  const { model: chosen, mode } = settingsOf(side);
  const searching = searches(policyNamed(chosen)?.protocol ?? "");
  const modes = ["passage", "graph", "hybrid"].filter((mode) => !index.value || index.value.modes.includes(mode));
  return (
    <div class="options">
      <strong class="side-name" aria-hidden="true">{name}</strong>
      <label>
        <span>Policy</span>
        <select value={chosen} onChange={(event) => change({ model: event.currentTarget.value })}>
          {policies.value.map((one) => <option value={one.id}>{one.id}</option>)}
        </select>
      </label>
      {searching && (
        <>
          <label>
            <span>Search</span>
            <select value={mode} onChange={(event) => change({ mode: event.currentTarget.value })}>
              <option value="">policy’s choice</option>
              {modes.map((mode) => <option value={mode}>{{ passage: "words and meaning", graph: "graph", hybrid: "words, meaning and graph" }[mode]}</option>)}
            </select>
          </label>
          <label>
            <span>Passages</span>
            <input type="number" min={1} max={200} placeholder="auto" value={side.k ?? ""} onInput={(event) => change({ k: passagesIn(event.currentTarget.value) })} />
          </label>
        </>
      )}
    </div>
  );
}

function Result({ live }: { live: Live }) {
  const view = live.view.value;
  const sources = sourcesOf(view);
  const places = view.citations.flatMap((cited) => {
    const source = sources.find((one) => one.passage.id === cited.passage);
    return source ? [{ end: cited.end, numbers: [source.number] }] : [];
  });
  const text = view.answer || view.refusal;
  const size = text.length <= 60 ? " short" : text.length <= 280 ? " medium" : "";
  return (
    <>
      {text
        ? <div class={"answer" + size}><Markdown text={mark(text, view.answer ? places : []).trim()} cite={(numbers) => <span class="citations">{numbers.map((number) => sources[number - 1] && <Citation live={live} source={sources[number - 1]} />)}</span>} /></div>
        : live.running.value ? <p class="answer pending doing"><span class="pulse" aria-hidden="true" /> <span role="status">{doing(view)}</span></p>
        : !view.failure && <p class="notice">{live.run.stopped ? "Stopped." : "No answer."}</p>}
      {view.failure && <p class="notice bad" role="alert">{view.failure}</p>}
      <Sources live={live} sources={sources} />
      {view.turns.length > 0 && <details class="steps"><summary>Step by step</summary><Timeline live={live} view={view} /></details>}
    </>
  );
}

const ROWS: { title: string; of: (live: Live) => number; show: (value: number) => string; least: boolean }[] = [
  { title: "Time", of: (live) => live.run.took ?? 0, show: seconds, least: true },
  { title: "Searches", of: (live) => live.view.value.searches.length, show: String, least: true },
  { title: "Written", of: (live) => live.view.value.usage?.completion_tokens ?? 0, show: (value) => count(value, "token"), least: true },
  { title: "Read", of: (live) => (live.view.value.usage?.prompt_tokens ?? 0) + (live.view.value.usage?.environment_tokens ?? 0), show: (value) => count(value, "token"), least: true },
  { title: "Sources", of: (live) => sourcesOf(live.view.value).length, show: String, least: false },
];

const answerOf = ({ run, view }: Live) => completeAnswer(run, view.value);

function verdict(a: string, b: string): string {
  if (!a && !b) return "Neither gives a complete answer.";
  if (!a || !b) return "Only " + (a ? "A" : "B") + " gives a complete answer.";
  return a === b ? "Both give the same answer." : "The answers differ.";
}

function Figures() {
  const [a, b] = lives.value;
  if (!a || !b || running() || !a.view.value.over || !b.view.value.over) return null;
  return (
    <div class="figures">
      <p><strong>{verdict(answerOf(a), answerOf(b))}</strong></p>
      <table>
        <thead><tr><th scope="col"><span class="hidden">Figure</span></th><th scope="col">A</th><th scope="col">B</th></tr></thead>
        <tbody>
          {ROWS.map(({ title, of, show, least }) => {
            const values = [of(a), of(b)];
            const best = least ? Math.min(...values) : Math.max(...values);
            return (
              <tr>
                <th scope="row">{title}</th>
                {values.map((value) => <td class={value === best && values[0] !== values[1] ? "best" : ""}>{show(value)}</td>)}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
