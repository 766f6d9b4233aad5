// The passages that an answer stands on, numbered in the order in which it cites them, and where each was read.
import type { Hit, Passage } from "../api/types";
import type { Search, View } from "./run";
import { forms, slice } from "./words";

// Title of a passage. Parts of a long document share a title, so their number is added.
export function titleOf({ id, title }: Passage): string {
  const part = /#(\d+)$/.exec(id);
  return title ? title + (part ? " · part " + part[1] : "") : id;
}

export interface Source {
  number: number;
  passage: Passage;
  // Segments of the answer that the passage supports.
  claims: string[];
  stated: boolean;
  read: Occurrence;
  occurrences: Occurrence[];
}

export interface Occurrence { search: Search; hit: Hit }

export function occurrences(view: View, id: string): Occurrence[] {
  return view.searches
    .filter((search) => search.first === search.index && !search.withdrawn)
    .flatMap((search) => search.hits.filter((hit) => hit.passage.id === id).map((hit) => ({ search, hit })));
}

// Computed once per view, because many parts of the page use them and a view does not change.
const sources = new WeakMap<View, Source[]>();
const reads = new WeakMap<View, Map<string, number>>();

function once<T>(kept: WeakMap<View, T>, view: View, make: (view: View) => T): T {
  const known = kept.get(view) ?? make(view);
  kept.set(view, known);
  return known;
}

export const sourcesOf = (view: View) => once(sources, view, findSources);

// The passages that were used, by id, each with the search after which it was read: cited ones, and those that the
// thought after their search speaks of.
export const readIn = (view: View) => once(reads, view, findRead);

function findSources(view: View): Source[] {
  const sources = new Map<string, Source>();
  for (const cited of view.citations) {
    const known = sources.get(cited.passage);
    const claim = slice(view.answer, cited.start, cited.end);
    if (known) {
      known.claims.push(claim);
      continue;
    }
    const found = occurrences(view, cited.passage);
    if (!found.length) continue;
    const read = whereRead(view, found);
    sources.set(cited.passage, {
      number: sources.size + 1, passage: read.hit.passage, claims: [claim], stated: cited.stated, read, occurrences: found,
    });
  }
  return [...sources.values()];
}

// The first search after which the policy's thoughts speak of the passage; else the last one that found it.
function whereRead(view: View, found: Occurrence[]): Occurrence {
  const quoting = found.filter(({ search, hit }) => spokenOf(thoughtAfter(view, search), search.hits).includes(hit));
  return (quoting[0] ?? found.at(-1))!;
}

export function thoughtAfter(view: View, search: Search): string {
  const after = view.turns.find((turn) => turn.number > search.turn);
  return after ? after.thought : "";
}

// Words in a row that a thought has to share with a passage to count as quoting it.
const QUOTED = 5;

// The passages that a thought speaks of: those that it names by their rank ("Doc 1 says"), else those that it quotes at
// most length.
export function spokenOf(thought: string, hits: Hit[]): Hit[] {
  if (!thought) return [];
  const named = new Set([...thought.matchAll(/\bdoc(?:ument)?s? (\d+)/gi)].map((match) => Number(match[1])));
  const byRank = hits.filter((hit) => named.has(hit.rank));
  if (byRank.length) return byRank;
  const spoken = forms(thought);
  const lengths = hits.map((hit) => longestRow(spoken, forms(hit.passage.text)));
  const longest = Math.max(QUOTED, ...lengths);
  return hits.filter((_, index) => lengths[index] === longest);
}

// Length of the longest run of words that both lists have in common.
function longestRow(one: string[], other: string[]): number {
  let longest = 0;
  let before: number[] = [];
  for (const form of one) {
    const row = other.map((word, at) => (word === form ? (before[at - 1] ?? 0) + 1 : 0));
    longest = Math.max(longest, ...row);
    before = row;
  }
  return longest;
}

function findRead(view: View): Map<string, number> {
  const read = new Map<string, number>();
  for (const search of view.searches) {
    if (search.withdrawn || search.first !== search.index) continue;
    for (const { passage } of spokenOf(thoughtAfter(view, search), search.hits)) {
      if (!read.has(passage.id)) read.set(passage.id, search.index);
    }
  }
  for (const { passage } of view.citations) {
    const found = occurrences(view, passage);
    if (found.length && !read.has(passage)) read.set(passage, whereRead(view, found).search.index);
  }
  return read;
}

export const usedPassages = (view: View) => new Set(readIn(view).keys());
