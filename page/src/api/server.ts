// What the server says about itself: its policies, its index, questions to begin with.
import { computed, signal } from "@preact/signals";
import { Refused, Unreachable, explain, get, keyWanted } from "./client";
import type { IndexInfo, Model } from "./types";

export interface Example { question: string; hops: number }

export const models = signal<Model[]>([]);
export const index = signal<IndexInfo | null>(null);
// "none": the server has no index. "unknown": it does not say.
export const indexState = signal<"unknown" | "some" | "none">("unknown");
export const examples = signal<Example[]>([]);
export const connection = signal<"asking" | "up" | "down">("asking");
export const trouble = signal("");

// A page that was saved as a file has no server.
export const offline = location.protocol === "file:" || document.getElementById("run") !== null;

// Protocols of listed models that are not policies and answer no questions.
const ENCODERS = ["embedding", "rerank"];

export const searches = (protocol: string) => !["plain", "verbatim", ...ENCODERS].includes(protocol);
export const policies = computed(() => models.value.filter((model) => !ENCODERS.includes(model.protocol)));
export const policyNamed = (name: string) => policies.value.find((model) => model.id === name);

// Default policy. Policies that can answer here come first, and loaded policies before built-in ones.
export const firstPolicy = computed(() => {
  const able = indexState.value === "none" ? policies.value.filter((one) => !searches(one.protocol)) : policies.value;
  const trained = able.filter((one) => searches(one.protocol) && !BUILT_IN.has(one.id));
  return trained[0] ?? able.find((one) => searches(one.protocol)) ?? able[0] ?? policies.value[0];
});

// Policies that every server has.
const BUILT_IN = new Set(["plain", "routerag", "search-r1", "path-router", "graphrag-r1", "tearag", "evo-rag", "verbatim"]);

export async function discover(): Promise<void> {
  if (offline) return;
  try {
    const { data } = await get<{ data: Model[] }>("/v1/models");
    models.value = data;
    keyWanted.value = false;
    connection.value = "up";
    trouble.value = "";
  } catch (error) {
    connection.value = error instanceof Unreachable ? "down" : "up";
    trouble.value = error instanceof Refused && error.status === 401 ? "" : explain(error);
    return;
  }
  await Promise.all([readIndex(), readExamples()]);
}

export async function readIndex(): Promise<void> {
  try {
    index.value = await get<IndexInfo>("/v1/index");
    indexState.value = "some";
  } catch (error) {
    index.value = null;
    indexState.value = error instanceof Refused && error.code === "not_configured" ? "none" : "unknown";
  }
}

async function readExamples(): Promise<void> {
  try {
    const { data } = await get<{ data: Example[] }>("/v1/index/questions?limit=6");
    examples.value = data;
  } catch {
    // A server without an index, or an older one, has none.
    examples.value = [];
  }
}

export const indexName = ({ name, corpus }: IndexInfo) => (name ?? corpus).replace(/\.index$/, "");

export function bytesInWords(bytes: number): string {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = bytes;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return (unit && size < 10 ? size.toFixed(1) : Math.round(size).toLocaleString("en-US")) + " " + units[unit];
}
