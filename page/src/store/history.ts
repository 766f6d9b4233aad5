// Conversations in this browser, in its database. Where it has none, as in a private window, they last as long as the
// page.
import { signal } from "@preact/signals";
import type { Run } from "../run/run";

export interface Conversation {
  id: string;
  title: string;
  changed: number;
  runs: Run[];
  // IDs of runs that were asked again. Another tab may still know them.
  replaced?: string[];
}

export interface Entry { id: string; title: string; changed: number }

// Youngest first.
export const entries = signal<Entry[]>([]);

// Conversations whose latest version the database did not take.
const memory = new Map<string, Conversation>();
// IDs that were removed. A run that is stopped by its removal still saves its conversation when it ends.
const removed = new Set<string>();
// IDs of runs that were asked again here, by conversation.
const replaced = new Map<string, string[]>();
let database: Promise<IDBDatabase | null> | null = null;

function open(): Promise<IDBDatabase | null> {
  database ??= new Promise((resolve) => {
    try {
      const opening = indexedDB.open("waymark", 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.onsuccess = () => resolve(opening.result);
      opening.onerror = () => resolve(null);
      opening.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return database;
}

async function within<T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | null> {
  const base = await open();
  if (!base) return null;
  return await new Promise((resolve) => {
    try {
      const transaction = base.transaction("conversations", mode);
      const asking = act(transaction.objectStore("conversations"));
      // A request can succeed and its transaction be rolled back, for example on a full disk.
      transaction.oncomplete = () => resolve(asking.result);
      transaction.onabort = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
}

const entry = ({ id, title, changed }: Entry): Entry => ({ id, title, changed });

export async function list(): Promise<void> {
  const kept = await stored();
  const all = [...kept.filter(({ id }) => !memory.has(id)), ...[...memory.values()].map(entry)];
  entries.value = all.sort((a, b) => b.changed - a.changed);
}

// Entries of the database, read one at a time: the conversations themselves hold all their passages.
async function stored(): Promise<Entry[]> {
  const found: Entry[] = [];
  await within("readonly", (store) => {
    const asking = store.openCursor();
    asking.onsuccess = () => {
      const cursor = asking.result;
      if (!cursor) return;
      found.push(entry(cursor.value));
      cursor.continue();
    };
    return asking;
  });
  return found;
}

export async function load(id: string): Promise<Conversation | null> {
  return memory.get(id) ?? ((await within("readonly", (store) => store.get(id))) as Conversation | null) ?? null;
}

// Leaves out a run whenever its conversation is saved: another one has taken its place.
export function dropRun(conversation: string, id: string): void {
  replaced.set(conversation, [...(replaced.get(conversation) ?? []), id]);
}

// Length of the text that the last event of a run has reached.
function lastText(run: Run): number {
  const event = run.events.at(-1)?.event;
  return event && "text" in event ? event.text.length : 0;
}

// True if a stored version of a run holds more than ours: more events, more of the last text, or the run's end. A run that goes on in another
// tab counts as stopped in the tab that opens it meanwhile.
function isLater(other: Run, run: Run): boolean {
  if (other.events.length !== run.events.length) return other.events.length > run.events.length;
  const [theirs, ours] = [lastText(other), lastText(run)];
  if (theirs !== ours) return theirs > ours;
  return !!run.stopped && !other.stopped && other.took !== null;
}

// A run of this page, with what another tab has stored of it.
function merged(run: Run, other: Run): Run {
  return {
    ...(isLater(other, run) ? other : run),
    facts: { ...other.facts, ...run.facts },
    walks: { ...other.walks, ...run.walks },
    feedback: "feedback" in run ? run.feedback : other.feedback,
  };
}

// Runs of a conversation of this page, with what another tab has stored of it meanwhile: further runs, and later
// versions of the same ones.
function joined(ours: Run[], stored: Run[]): Run[] {
  const latest = ours.map((run) => {
    const other = stored.find((one) => one.id === run.id);
    return other ? merged(run, other) : run;
  });
  const added = stored.filter((run) => !ours.some((one) => one.id === run.id));
  return added.length ? [...latest, ...added].sort((a, b) => a.started - b.started) : latest;
}

export async function save(conversation: Conversation): Promise<void> {
  if (removed.has(conversation.id)) return;
  // Signals and elements never end up in it: it is plain data.
  const plain = JSON.parse(JSON.stringify(conversation)) as Conversation;
  // Read and written in one transaction, so that no other tab writes in between.
  const done = await within("readwrite", (store) => {
    const asking: IDBRequest<Conversation | undefined> = store.get(plain.id);
    asking.onsuccess = () => {
      const stored = asking.result;
      const gone = new Set([...(stored?.replaced ?? []), ...(replaced.get(plain.id) ?? [])]);
      plain.replaced = [...gone];
      plain.runs = joined(plain.runs, stored?.runs ?? []).filter((run) => !gone.has(run.id));
      store.put(plain);
    };
    return asking;
  });
  if (removed.has(plain.id)) return;
  if (done === null) memory.set(plain.id, plain);
  else memory.delete(plain.id);
  const others = entries.value.filter((one) => one.id !== plain.id);
  entries.value = [entry(plain), ...others].sort((a, b) => b.changed - a.changed);
}

export async function remove(id: string): Promise<void> {
  removed.add(id);
  memory.delete(id);
  await within("readwrite", (store) => store.delete(id));
  entries.value = entries.value.filter((one) => one.id !== id);
}

// Removes all conversations, and `shown`, which may run without being stored yet.
export async function clear(shown: string): Promise<void> {
  for (const id of [shown, ...entries.value.map((one) => one.id)]) removed.add(id);
  memory.clear();
  await within("readwrite", (store) => store.clear());
  entries.value = [];
}
