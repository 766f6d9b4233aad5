// The conversation that is shown: its runs, and what is asked next.
import { effect, signal } from "@preact/signals";
import { firstPolicy, policyNamed } from "../api/server";
import { completeAnswer } from "../run/answer";
import { Live } from "../run/live";
import type { Run, Settings } from "../run/run";
import { dropRun, load, save } from "../store/history";
import { go, route } from "../shell/route";
import { say } from "../shell/toast";
import { card } from "./card-state";

export interface Shown { id: string; lives: Live[] }

// Latest state of the conversations that were asked or opened here, by ID. A run still saves its conversation when
// another one is shown.
const newest = new Map<string, Shown>();

const newId = () => "c" + Date.now().toString(36) + Math.floor(Math.random() * 1e6).toString(36);

export const conversation = signal<Shown>({ id: newId(), lives: [] });
// What the next question is asked with; an empty name means the first policy that can answer.
export const settings = signal<Settings>({ model: "", mode: "", k: null });
export const draft = signal("");

export const chosenModel = () => policyNamed(settings.value.model)?.id ?? firstPolicy.value?.id ?? "";

// Shows another conversation. The run of the one before is stopped.
function show(next: Shown): void {
  for (const live of conversation.peek().lives) live.stop();
  card.value = null;
  conversation.value = next;
}

export function newConversation(): void {
  show({ id: newId(), lives: [] });
  draft.value = "";
}

async function keep(shown: Shown): Promise<void> {
  if (!shown.lives.length) return;
  const runs = shown.lives.map((live) => live.run);
  await save({ id: shown.id, title: runs[0].question, changed: Date.now(), runs });
}

export const keepNow = () => keep(conversation.value);

export async function ask(question: string): Promise<void> {
  const text = question.trim();
  if (!text || isRunning()) return;
  const shown = conversation.value;
  const before = shown.lives
    .map(({ run, view }) => ({ question: run.question, answer: completeAnswer(run, view.value) }))
    .filter((one) => one.answer);
  const live = Live.ask(text, { ...settings.value, model: chosenModel() }, before, shown.lives.at(-1)?.run.forgotten);
  const next = { id: shown.id, lives: [...shown.lives, live] };
  conversation.value = next;
  draft.value = "";
  go("ask", next.id, !shown.lives.length);
  await follow(live, next);
}

// Asks a question again with the current settings, and replaces its run.
export async function retry(live: Live): Promise<void> {
  if (isRunning()) return;
  const shown = conversation.value;
  dropRun(shown.id, live.run.id);
  const again = Live.ask(live.run.question, { ...settings.value, model: chosenModel() }, live.run.before, live.run.forgotten);
  const next = { id: shown.id, lives: shown.lives.map((one) => (one === live ? again : one)) };
  conversation.value = next;
  await follow(again, next);
}

async function follow(live: Live, shown: Shown): Promise<void> {
  newest.set(shown.id, shown);
  // A follow-up may be asked while the facts of this run are still fetched.
  const latest = () => newest.get(shown.id) ?? shown;
  const saving = setInterval(() => void keep(latest()), 3000);
  void keep(shown);
  try {
    await live.perform();
  } finally {
    clearInterval(saving);
    await keep(latest());
  }
}

export const isRunning = () => conversation.value.lives.some((live) => live.running.value);

export function stop(): void {
  for (const live of conversation.value.lives) live.stop();
}

// Opens a run from a file, a link or a trace as a conversation of its own.
export function openRun(run: Run): void {
  newConversation();
  conversation.value = { id: newId(), lives: [new Live(run)] };
  go("ask", "", true);
}

// Opens a conversation of the history, or an empty one if the history has none of this ID.
async function reopen(id: string): Promise<void> {
  const kept = await load(id);
  // The user may have gone elsewhere meanwhile, or there and back.
  if (route.peek().name !== "ask" || route.peek().rest !== id || conversation.peek().id === id) return;
  if (!kept) {
    show({ id: newId(), lives: [] });
    say("This conversation is not kept in this browser.");
    return;
  }
  // A run that was going on when the page was closed ended with it.
  for (const run of kept.runs) if (run.took === null) Object.assign(run, { took: run.events.at(-1)?.at ?? 0, stopped: true });
  const shown = { id: kept.id, lives: kept.runs.map((run) => new Live(run)) };
  newest.set(id, shown);
  show(shown);
}

// Loads the conversation that the address names from the history.
effect(() => {
  const { name, rest } = route.value;
  if (name === "ask" && rest && rest !== conversation.peek().id) void reopen(rest);
});
