// Details of a run that are not among its events: facts of its passages, and the facts and first phrases of its graph
// searches.
import { get, inPath, send } from "../api/client";
import type { Hit, Triple, Walk } from "../api/types";
import type { Search, View } from "./run";
import { usedPassages } from "./sources";

// Address at which the server looks into the index that the run searched.
export type Addressed = (path: string) => string;

// Passages whose facts are fetched at most.
const MOST = 8;

// Passages whose facts may lead to the answer: the used ones, then the best ones of each search.
export function telling(view: View): string[] {
  const others = view.searches.flatMap((search) => search.hits.slice(0, 5)).sort((a, b) => a.rank - b.rank);
  return [...new Set([...usedPassages(view), ...others.map((hit) => hit.passage.id)])].slice(0, MOST);
}

export async function factsOf(id: string, addressed: Addressed): Promise<Triple[]> {
  const path = addressed("/v1/index/passages/" + inPath(id) + "?limit=100");
  const { triples } = await get<{ triples: { data: Triple[] } }>(path);
  return triples.data.map(({ subject, relation, object }) => ({ subject, relation, object }));
}

// Repeats a graph search with `explain`. Null if it is none, or if the reply tells of another walk.
export async function walkOf(search: Search, addressed: Addressed): Promise<Walk | null> {
  if (search.cached || search.error || !["graph", "hybrid"].includes(search.mode)) return null;
  const body = { query: search.query, mode: search.mode, k: Math.max(1, search.hits.length), explain: true };
  const found = await send<{ snapshot: number; hits: Hit[]; walk?: Walk }>(addressed("/v1/search"), body);
  if (!found.walk || found.snapshot !== search.snapshot || !isSame(search.hits, found.hits)) return null;
  return { ...found.walk, facts: found.walk.facts.slice(0, 8), phrases: found.walk.phrases.slice(0, 8) };
}

// True if two searches found the same by the same walk. The policy may set its own kind of walk, which is not repeated.
function isSame(hits: Hit[], others: Hit[]): boolean {
  return hits.length === others.length
    && hits.every((hit, at) => hit.passage.id === others[at].passage.id && isNear(massOf(hit), massOf(others[at])));
}

const massOf = (hit: Hit) => hit.path?.graph?.mass ?? 0;

const isNear = (a: number, b: number) => Math.abs(a - b) <= 0.001 * Math.max(a, b);
