// The bar at the side, on phones at the top: the views, and the conversations kept in this browser.
import { signal, useSignal } from "@preact/signals";
import { clear, entries, remove } from "../store/history";
import { type TraceSummary, listTraces, traceAsRun } from "../store/traces";
import { conversation, newConversation, openRun } from "../ask/conversation";
import { connection, offline } from "../api/server";
import { readRun } from "../share/read";
import { explain } from "../api/client";
import { Icon, Sign } from "./icon";
import { type Name, address, go, route } from "./route";
import { say } from "./toast";

const VIEWS: { name: Name; title: string }[] = [
  { name: "ask", title: "Ask" },
  { name: "compare", title: "Compare" },
  { name: "explore", title: "Explore" },
  { name: "operate", title: "Operate" },
];

export const historyShown = signal(false);

// Ends the shown conversation if it is this one, which is about to be forgotten, and its address.
function leave(id: string): void {
  if (conversation.value.id !== id) return;
  newConversation();
  if (route.value.name === "ask") go("ask", "", true);
}

export function Side() {
  return (
    <header class="side">
      <a class="brand" href="#/ask" onClick={() => newConversation()}><Sign /> <span>Waymark</span></a>
      <nav aria-label="Views">
        {VIEWS.filter(({ name }) => !offline || name === "ask").map(({ name, title }) => (
          <a href={address(name)} class="view" aria-current={route.value.name === name ? "page" : undefined}>
            <Icon name={name} /> <span>{title}</span>
          </a>
        ))}
      </nav>
      <button class="quiet history-button" aria-expanded={historyShown.value} aria-controls="history" onClick={() => { historyShown.value = !historyShown.value; }}>
        <Icon name="menu" /><span class="hidden">History</span>
      </button>
      <History />
    </header>
  );
}

function History() {
  return (
    <section id="history" class={historyShown.value ? "shown" : ""} aria-label="History">
      <div class="row">
        {!offline && <button onClick={() => { newConversation(); go("ask"); historyShown.value = false; }}><Icon name="plus" /> New question</button>}
        <OpenFile />
      </div>
      {entries.value.length === 0 && <p class="dim">Your questions are kept here, in this browser alone.</p>}
      <ul>
        {entries.value.map((entry) => (
          <li key={entry.id}>
            <a
              href={address("ask", entry.id)} dir="auto"
              aria-current={route.value.name === "ask" && conversation.value.id === entry.id ? "true" : undefined}
              onClick={() => { historyShown.value = false; }}
            ><span>{entry.title}</span></a>
            <button class="quiet" aria-label={"Forget: " + entry.title} onClick={() => { leave(entry.id); void remove(entry.id); }}>
              <Icon name="trash" />
            </button>
          </li>
        ))}
      </ul>
      {!offline && connection.value === "up" && <OnServer />}
      {entries.value.length > 1 && <button class="quiet forget" onClick={() => { if (confirm("Forget all conversations that are kept in this browser?")) { const shown = conversation.value.id; leave(shown); void clear(shown); } }}>Forget all</button>}
    </section>
  );
}

// Runs that the server keeps; asked for only when somebody looks.
function OnServer() {
  const kept = useSignal<TraceSummary[] | null>(null);
  const failure = useSignal("");
  const wanted = useSignal("");
  const look = async () => {
    try {
      kept.value = await listTraces();
      failure.value = "";
    } catch (error) {
      failure.value = explain(error);
    }
  };
  const show = async (id: string) => {
    const shown = conversation.peek();
    const place = route.peek();
    wanted.value = id;
    try {
      const run = await traceAsRun(id);
      // The user may have asked, opened another run or gone elsewhere meanwhile.
      if (wanted.peek() !== id || conversation.peek() !== shown || route.peek() !== place) return;
      openRun(run);
      historyShown.value = false;
      void conversation.value.lives[0].addFacts();
    } catch (error) {
      say(explain(error));
    }
  };
  return (
    <details class="on-server" onToggle={(event) => { if (event.currentTarget.open) void look(); }}>
      <summary>On this server</summary>
      {failure.value && <p class="bad">{failure.value}</p>}
      {kept.value?.length === 0 && <p class="dim">It keeps no runs of yours.</p>}
      <ul>
        {kept.value?.map(({ id, question }) => (
          <li key={id}><button class="quiet" dir="auto" onClick={() => void show(id)}>{question || id}</button></li>
        ))}
      </ul>
    </details>
  );
}

export function OpenFile() {
  const open = async (event: Event) => {
    const input = event.currentTarget as HTMLInputElement;
    const file = input.files?.[0];
    if (!file) return;
    try {
      openRun(readRun(await file.text()));
      historyShown.value = false;
    } catch (error) {
      say(explain(error));
    }
    // Without this, choosing the same file again would cause no event.
    input.value = "";
  };
  return (
    <label class="button">
      <Icon name="open" /> Open a run
      <input type="file" id="file" class="hidden" accept=".html,.json,.jsonl" onChange={open} />
    </label>
  );
}
