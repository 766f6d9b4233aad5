// Conversations in this browser, in its database. Where it has none, as in a private window, they last as long as the
// page.
import { signal } from "@preact/signals";
import type { Run } from "../run/run";

export interface Conversation { id: string; title: string; changed: number; runs: Run[] }
export interface Entry { id: string; title: string; changed: number }

// Youngest first.
export const entries = signal<Entry[]>([]);

const MOST = 200;
const memory = new Map<string, Conversation>();
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
      const asking = act(base.transaction("conversations", mode).objectStore("conversations"));
      asking.onsuccess = () => resolve(asking.result);
      asking.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
}

const entry = ({ id, title, changed }: Entry): Entry => ({ id, title, changed });

export async function list(): Promise<void> {
  const kept = (await within("readonly", (store) => store.getAll())) as Conversation[] | null;
  const all = [...(kept ?? []), ...memory.values()].sort((a, b) => b.changed - a.changed);
  entries.value = all.slice(0, MOST).map(entry);
  for (const old of all.slice(MOST)) await within("readwrite", (store) => store.delete(old.id));
}

export async function load(id: string): Promise<Conversation | null> {
  return memory.get(id) ?? ((await within("readonly", (store) => store.get(id))) as Conversation | null) ?? null;
}

export async function save(conversation: Conversation): Promise<void> {
  // Signals and elements never end up in it: it is plain data.
  const plain = JSON.parse(JSON.stringify(conversation)) as Conversation;
  const done = await within("readwrite", (store) => store.put(plain));
  if (done === null) memory.set(plain.id, plain);
  const others = entries.value.filter((one) => one.id !== plain.id);
  entries.value = [entry(plain), ...others].sort((a, b) => b.changed - a.changed);
}

export async function remove(id: string): Promise<void> {
  memory.delete(id);
  await within("readwrite", (store) => store.delete(id));
  entries.value = entries.value.filter((one) => one.id !== id);
}

export async function clear(): Promise<void> {
  memory.clear();
  await within("readwrite", (store) => store.clear());
  entries.value = [];
}
