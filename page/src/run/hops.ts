// Path of facts from the question to the answer: "Don Giovanni → composed by → Mozart → born in → Salzburg".
import type { Triple } from "../api/types";
import type { Run, View } from "./run";
import { usedPassages } from "./sources";
import { forms, placeOf } from "./words";

export interface Hop {
  from: string;
  relation: string;
  to: string;
  // True if the fact is stated from `to` to `from`.
  reversed: boolean;
  passage: string;
}

interface Edge { to: string; hop: Hop; used: boolean }

const LONGEST = 4;

const nameOf = (text: string) => forms(text).join(" ");

export function hopsOf(run: Run, view: View): Hop[] {
  if (!view.answer || !Object.keys(run.facts).length) return [];
  const edges = edgesOf(run.facts, usedPassages(view));
  const question = forms(run.question);
  const answer = forms(view.answer);
  const inQuestion = (name: string) => placeOf(name.split(" "), question) >= 0;
  const isAnswer = (name: string) => name === answer.join(" ");
  const inAnswer = (name: string) => name.length > 2 && placeOf(name.split(" "), answer) >= 0 && !inQuestion(name);
  const starts = [...edges.keys()].filter((name) => name.length > 2 && inQuestion(name));
  // A start inside of another one ("don" in "don giovanni") would only tell less.
  const longest = starts.filter((name) => !starts.some((other) => other !== name && placeOf(name.split(" "), other.split(" ")) >= 0));
  let best: Hop[] = [];
  for (const start of longest) {
    const way = search(edges, start, isAnswer) ?? search(edges, start, inAnswer);
    if (way && worth(way, view) > worth(best, view)) best = way;
  }
  return best;
}

// Score of a path. Facts of used passages count most; among equals a longer path wins, because it covers more of the
// question.
function worth(hops: Hop[], view: View): number {
  const used = usedPassages(view);
  return hops.length ? hops.filter((hop) => used.has(hop.passage)).length * 10 + hops.length : -1;
}

function edgesOf(facts: Record<string, Triple[]>, used: Set<string>): Map<string, Edge[]> {
  const edges = new Map<string, Edge[]>();
  const add = (from: string, edge: Edge) => {
    const known = edges.get(from);
    if (known) known.push(edge);
    else edges.set(from, [edge]);
  };
  for (const [passage, triples] of Object.entries(facts)) {
    for (const { subject, relation, object } of triples) {
      const from = nameOf(String(subject));
      const to = nameOf(String(object));
      if (!from || !to || from === to) continue;
      const common = { relation: String(relation), passage };
      add(from, { to, used: used.has(passage), hop: { from: String(subject), to: String(object), reversed: false, ...common } });
      add(to, { to: from, used: used.has(passage), hop: { from: String(object), to: String(subject), reversed: true, ...common } });
    }
  }
  // Facts of used passages are followed first, and those in their own direction.
  for (const list of edges.values()) list.sort((a, b) => Number(b.used) - Number(a.used) || Number(a.hop.reversed) - Number(b.hop.reversed));
  return edges;
}

function search(edges: Map<string, Edge[]>, start: string, goal: (name: string) => boolean): Hop[] | null {
  const seen = new Set([start]);
  let front: { name: string; way: Hop[] }[] = [{ name: start, way: [] }];
  for (let depth = 0; depth < LONGEST && front.length; depth++) {
    const next: typeof front = [];
    for (const { name, way } of front) {
      for (const { to, hop } of edges.get(name) ?? []) {
        if (seen.has(to)) continue;
        seen.add(to);
        if (goal(to)) return [...way, hop];
        next.push({ name: to, way: [...way, hop] });
      }
    }
    front = next;
  }
  return null;
}
