// The view Operate: state of the engine now and in the last minutes.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Refused, explain, get } from "../api/client";
import { bytesInWords, connection, index, offline } from "../api/server";
import { Chart } from "./chart";
import { type Load, type Session, Sampler } from "./sampler";

// Pause between two looks, in milliseconds. Each request counts toward the limits of the API key.
const EVERY = 3000;

export function Operate() {
  const sampler = useSignal(new Sampler());
  const changes = useSignal(0);
  const failure = useSignal("");
  const sessions = useSignal<Session[]>([]);
  useEffect(() => {
    if (offline) return;
    let over = false;
    let looks = 0;
    const poll = async () => {
      let pause = EVERY;
      if (!document.hidden) {
        try {
          sampler.value.take(await get<Load>("/debug/load"));
          failure.value = "";
          // They take a request of their own, so only every second look includes them.
          if (looks++ % 2 === 0) sessions.value = (await get<{ sessions: Session[] }>("/debug/state")).sessions;
        } catch (error) {
          failure.value = reason(error);
          if (error instanceof Refused) pause = Math.max(EVERY, error.retryAfter);
        }
        changes.value += 1;
      }
      if (!over) timer = window.setTimeout(poll, pause);
    };
    let timer = window.setTimeout(poll, 0);
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, []);
  void changes.value;
  const now = sampler.value.last;
  return (
    <section class="operate">
      <h1>Operate</h1>
      {offline && <p>A saved run has no server to look at.</p>}
      {failure.value && <p class="notice bad" role="alert">{failure.value}</p>}
      {!now && !failure.value && !offline && <p class="dim">Asking the server …</p>}
      {now && <State now={now} sampler={sampler.value} stale={!!failure.value || connection.value === "down"} />}
      {now && <Sessions sessions={sessions.value} />}
    </section>
  );
}

function reason(error: unknown): string {
  if (error instanceof Refused && error.code === "insufficient_scope") return "Your API key lacks the scope “admin” that this needs.";
  if (error instanceof Refused && error.status === 404) return "This server is older than this page and does not tell its load.";
  return explain(error);
}

const PHASES: Record<string, string> = { serving: "Serving", draining: "Shutting down: it ends what runs and takes nothing new", expired: "Shutting down" };

function State({ now, sampler, stale }: { now: Load; sampler: Sampler; stale: boolean }) {
  const { blocks, sessions, index: searched } = now;
  const part = (count: number) => (blocks.total ? count / blocks.total : 0);
  return (
    <div class={stale ? "stale" : ""}>
      <p class="lead">
        {PHASES[now.phase] ?? now.phase}, {now.phase === "serving" ? "for" : "after"} {duration(now.seconds)}
        {searched && <> · version {searched.snapshot} of the index, {searched.passages.toLocaleString("en-US")} passages{index.value ? ", " + bytesInWords(index.value.bytes) : ""}</>}
      </p>
      <div class="charts">
        <Chart title="Running" value={sessions.running} points={sampler.series((one) => one.sessions.running)} />
        <Chart title="Waiting" value={sessions.waiting} points={sampler.series((one) => one.sessions.waiting)} />
        <Chart title="Parked in a search" value={sessions.parked} points={sampler.series((one) => one.sessions.parked)} />
        <Chart title="Written" unit="tokens/s" value={sampler.rate((one) => one.totals.decode_tokens)} points={sampler.rates((one) => one.totals.decode_tokens)} />
        <Chart title="Read" unit="tokens/s" value={sampler.rate((one) => one.totals.prefill_tokens)} points={sampler.rates((one) => one.totals.prefill_tokens)} />
        <Chart title="Searches" unit="/s" value={sampler.rate((one) => one.totals.searches + one.totals.client_searches)} points={sampler.rates((one) => one.totals.searches + one.totals.client_searches)} />
        <Chart title="Prompt from the cache" unit="%" value={sampler.hits()} points={sampler.hitSeries()} />
        <figure class="chart">
          <figcaption>Memory for sequences</figcaption>
          <p class="figure">{Math.round(part(blocks.used) * 100)}<span class="unit"> % in use</span></p>
          <div class="bar" role="img" aria-label={blocks.used + " blocks in use, " + blocks.cached + " cached, " + blocks.free + " free"}>
            <span class="used" ref={width(part(blocks.used))} /><span class="cached" ref={width(part(blocks.cached))} />
          </div>
          <p class="dim legend"><span class="swatch used" /> {blocks.used} in use <span class="swatch cached" /> {blocks.cached} cached, of {blocks.total.toLocaleString("en-US")} blocks</p>
        </figure>
      </div>
      {now.totals.preemptions > 0 && <p class="notice">{now.totals.preemptions.toLocaleString("en-US")} sequences had to give up their memory since the start: consider a larger --kv-bytes.</p>}
    </div>
  );
}

const width = (share: number) => (element: HTMLElement | null) => {
  if (element) element.style.width = share * 100 + "%";
};

function duration(seconds: number): string {
  if (seconds < 90) return Math.round(seconds) + " seconds";
  if (seconds < 5400) return Math.round(seconds / 60) + " minutes";
  return seconds < 172800 ? Math.round(seconds / 3600) + " hours" : Math.round(seconds / 86400) + " days";
}

const STATES: Record<string, string> = { waiting: "waiting", running: "running", stalled: "held up by a slow reader", parked: "parked in a search" };

function Sessions({ sessions }: { sessions: Session[] }) {
  return (
    <section aria-label="Sequences">
      <h2>Sequences</h2>
      {!sessions.length ? <p class="dim">None at the moment.</p> : (
        <div class="wide" tabIndex={0} role="group" aria-label="Sequences in the engine">
          <table>
            <thead><tr><th scope="col">Request</th><th scope="col">State</th><th scope="col" class="to-right">Tokens</th><th scope="col" class="to-right">Blocks</th><th scope="col" class="to-right">Age</th></tr></thead>
            <tbody>
              {sessions.slice(0, 100).map((one) => (
                <tr key={one.id}>
                  <td><code>{one.request ?? one.id}</code></td><td>{STATES[one.state] ?? one.state}</td>
                  <td class="to-right">{one.tokens}</td><td class="to-right">{one.blocks}</td><td class="to-right">{one.age_seconds.toFixed(1)} s</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
