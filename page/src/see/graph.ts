// The graph of an answer, out of its searches: query → facts → phrases → passages → next query or answer. A node is
// there once, however often it was found.
import type { Hit } from "../api/types";
import type { Run, Search, View } from "../run/run";
import { readIn, sourcesOf } from "../run/sources";
import { forms, placeOf } from "../run/words";

export type Kind = "query" | "fact" | "phrase" | "passage" | "more" | "answer";

export interface GraphNode {
  id: string;
  kind: Kind;
  label: string;
  column: number;
  lit: boolean;
  // Share of what its search's passages have together: the walk's mass, else the score.
  share: number;
  search?: Search;
  hit?: Hit;
  times?: number;
  hidden?: number;
}

export interface GraphEdge { from: string; to: string; share: number; lit: boolean; kind: "found" | "led" | "supports" }

export interface PathGraph { nodes: GraphNode[]; edges: GraphEdge[]; columns: number }

// Passages of a search that are shown at first, beside those that were used.
const SHOWN = 4;

export function graphOf(run: Run, view: View, expanded: ReadonlySet<number>): PathGraph {
  const builder = new Builder();
  const read = readIn(view);
  const used = new Set(read.keys());
  const distinct = view.searches.filter((search) => search.first === search.index);
  const lastSeen = new Map<string, number>();
  for (const search of distinct) for (const hit of search.hits) lastSeen.set(hit.passage.id, read.get(hit.passage.id) ?? search.index);
  for (const search of distinct) {
    const times = view.searches.filter((one) => one.first === search.index).length;
    const query = builder.node({ id: "q" + search.index, kind: "query", label: search.query, lit: false, share: 1, search, times });
    leads(builder, view, distinct, search, used, query);
    builder.next();
    const depth = ways(builder, run, search, used);
    builder.advance(depth);
    passages(builder, search, { used, lastSeen, all: expanded.has(search.index) });
    builder.next();
  }
  answer(builder, view);
  return builder.finish();
}

class Builder {
  private readonly nodes = new Map<string, GraphNode>();
  private readonly edges = new Map<string, GraphEdge>();
  column = 0;

  node(node: Omit<GraphNode, "column"> & { column?: number }): GraphNode {
    const known = this.nodes.get(node.id);
    if (known) {
      known.share += node.share;
      known.lit ||= node.lit;
      known.column = Math.max(known.column, node.column ?? this.column);
      return known;
    }
    const made = { column: this.column, ...node };
    this.nodes.set(node.id, made);
    return made;
  }

  edge(from: string, to: string, share: number, lit: boolean, kind: GraphEdge["kind"] = "found"): void {
    const id = from + "\n" + to;
    const known = this.edges.get(id);
    if (known) {
      known.share = Math.max(known.share, share);
      known.lit ||= lit;
    } else this.edges.set(id, { from, to, share, lit, kind });
  }

  has(id: string): boolean {
    return this.nodes.has(id);
  }

  next(): void {
    this.column += 1;
  }

  advance(columns: number): void {
    this.column += columns;
  }

  finish(): PathGraph {
    const present = [...this.edges.values()].filter((edge) => this.nodes.has(edge.from) && this.nodes.has(edge.to));
    for (const edge of present) {
      if (!edge.lit) continue;
      this.nodes.get(edge.from)!.lit = true;
      this.nodes.get(edge.to)!.lit = true;
    }
    const columns = [...new Set([...this.nodes.values()].map((node) => node.column))].sort((a, b) => a - b);
    const nodes = [...this.nodes.values()].map((node) => ({ ...node, column: columns.indexOf(node.column) }));
    nodes.sort((a, b) => a.column - b.column);
    return { nodes, edges: present, columns: columns.length };
  }
}

// Links to a query from the used passage of an earlier search that names what is searched for.
function leads(builder: Builder, view: View, distinct: Search[], search: Search, used: Set<string>, query: GraphNode): void {
  const asked = forms(search.query);
  for (const earlier of distinct.filter((one) => one.index < search.index).reverse()) {
    const from = earlier.hits.find((hit) => used.has(hit.passage.id)
      && (placeOf(asked, forms(hit.passage.text)) >= 0 || placeOf(asked, forms(hit.passage.title)) >= 0));
    if (!from) continue;
    builder.edge("p" + from.passage.id, query.id, 0.5, view.over, "led");
    return;
  }
}

const massOf = (search: Search) => (hit: Hit) => {
  const walked = search.hits.every((one) => one.path?.graph);
  return Math.max(0, walked ? hit.path.graph!.mass : Number(hit.score) || 0);
};

const shares = (search: Search) => {
  const mass = massOf(search);
  const total = search.hits.reduce((sum, hit) => sum + mass(hit), 0) || 1;
  return (hit: Hit) => mass(hit) / total;
};

// Facts and phrases between a query and its passages. Returns the number of columns that they take.
function ways(builder: Builder, run: Run, search: Search, used: Set<string>): number {
  const share = shares(search);
  const walked = search.hits.filter((hit) => hit.path?.graph?.via?.length);
  if (!walked.length) return 0;
  const facts = (run.walks[search.index]?.facts ?? []).filter((fact) => fact.kept !== false).slice(0, 6);
  const shown = walked.filter((hit) => used.has(hit.passage.id) || hit.rank <= SHOWN);
  const firsts = new Set(shown.map((hit) => hit.path.graph!.via![0].phrase));
  const stating = facts.filter((fact) => [fact.subject, fact.object].some((one) => firsts.has(one)));
  const lead = stating.length ? 1 : 0;
  let deepest = 0;
  for (const hit of shown) {
    const via = hit.path.graph!.via!;
    const lit = used.has(hit.passage.id);
    deepest = Math.max(deepest, via.length);
    let from = "q" + search.index;
    const fact = stating.find((one) => one.subject === via[0].phrase || one.object === via[0].phrase);
    if (fact) {
      const label = fact.subject + " " + fact.relation + " " + fact.object;
      const node = builder.node({ id: "f" + search.index + label, kind: "fact", label, lit, share: share(hit) });
      builder.edge(from, node.id, share(hit), lit);
      from = node.id;
    }
    via.forEach(({ phrase }, index) => {
      const column = builder.column + lead + index;
      const node = builder.node({ id: "w" + search.index + phrase, kind: "phrase", label: phrase, lit, share: share(hit), column });
      builder.edge(from, node.id, share(hit), lit);
      from = node.id;
    });
    builder.edge(from, "p" + hit.passage.id, share(hit), lit);
  }
  return lead + deepest;
}

interface Choice { used: Set<string>; lastSeen: Map<string, number>; all: boolean }

function passages(builder: Builder, search: Search, { used, lastSeen, all }: Choice): void {
  const share = shares(search);
  const query = "q" + search.index;
  let hidden = 0;
  for (const hit of search.hits) {
    const id = "p" + hit.passage.id;
    const lit = used.has(hit.passage.id);
    const here = lastSeen.get(hit.passage.id) === search.index;
    if (!lit && !all && hit.rank > SHOWN) {
      hidden += here ? 1 : 0;
      continue;
    }
    if (here) builder.node({ id, kind: "passage", label: hit.passage.title || hit.passage.id, lit, share: share(hit), search, hit });
    // A passage that a walk reached hangs on its last phrase.
    if (!hit.path?.graph?.via?.length || (!lit && hit.rank > SHOWN)) builder.edge(query, id, share(hit), lit && here);
  }
  if (hidden) {
    const id = "m" + search.index;
    builder.node({ id, kind: "more", label: hidden + " more that were not used", lit: false, share: 0, search, hidden });
    builder.edge(query, id, 0, false);
  }
  if (search.done && !search.hits.length) {
    builder.node({ id: "m" + search.index, kind: "more", label: search.error ? "the search failed" : "nothing found", lit: false, share: 0, search, hidden: 0 });
    builder.edge(query, "m" + search.index, 0, false);
  }
}

function answer(builder: Builder, view: View): void {
  // Without the signs of Markdown.
  const text = view.answer.replace(/[#*`>|]+/g, " ").replace(/\s+/g, " ").trim();
  if (!text) return;
  builder.node({ id: "a", kind: "answer", label: text.length > 120 ? text.slice(0, text.lastIndexOf(" ", 118) + 1 || 118).trimEnd() + " …" : text, lit: true, share: 1 });
  for (const source of sourcesOf(view)) builder.edge("p" + source.passage.id, "a", 0.5, true, "supports");
}
