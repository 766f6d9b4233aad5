// Graph of an answer, built from its searches: query → facts → phrases → passages → next query or answer. A passage has
// one node, however often it was found.
import type { Hit } from "../api/types";
import type { Run, Search, View } from "../run/run";
import { readIn, sourcesOf, titleOf } from "../run/sources";
import { forms, placeOf } from "../run/words";

export type Kind = "query" | "fact" | "phrase" | "passage" | "more" | "answer";

export interface GraphNode {
  id: string;
  kind: Kind;
  label: string;
  // The search that it belongs to, and its distance from that search's query, in columns.
  band: number;
  depth: number;
  lit: boolean;
  search?: Search;
  hit?: Hit;
  times?: number;
  hidden?: number;
}

export interface GraphEdge { from: string; to: string; share: number; lit: boolean; kind: "found" | "led" | "supports" }

export interface PathGraph {
  nodes: GraphNode[];
  edges: GraphEdge[];
  // Number of columns of each band.
  widths: number[];
}

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
    const query = builder.node({ id: "q" + search.index, kind: "query", label: search.query, depth: 0, lit: false, search, times });
    leads(builder, view, { distinct, search, read, query, question: forms(run.question) });
    const here = new Set([...read].filter(([, at]) => at === search.index).map(([id]) => id));
    const between = ways(builder, run, search, here);
    passages(builder, search, { used, lastSeen, all: expanded.has(search.index), depth: 1 + between });
    builder.band += 1;
  }
  answer(builder, view);
  return builder.finish();
}

class Builder {
  private readonly nodes = new Map<string, GraphNode>();
  private readonly edges = new Map<string, GraphEdge>();
  band = 0;

  node(node: Omit<GraphNode, "band">): GraphNode {
    const known = this.nodes.get(node.id);
    if (known) {
      known.lit ||= node.lit;
      known.depth = Math.max(known.depth, node.depth);
      return known;
    }
    const made = { ...node, band: this.band };
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

  isReached(id: string, search: number): boolean {
    return [...this.edges.values()].some((edge) => edge.to === id && edge.from.startsWith("w" + search + " "));
  }

  // Number of columns of the present band.
  width(): number {
    return 1 + Math.max(-1, ...[...this.nodes.values()].filter((node) => node.band === this.band).map((node) => node.depth));
  }

  finish(): PathGraph {
    const present = [...this.edges.values()].filter((edge) => this.nodes.has(edge.from) && this.nodes.has(edge.to));
    for (const edge of present) {
      if (!edge.lit) continue;
      this.nodes.get(edge.from)!.lit = true;
      this.nodes.get(edge.to)!.lit = true;
    }
    const nodes = [...this.nodes.values()];
    const widths: number[] = [];
    for (const node of nodes) widths[node.band] = Math.max(widths[node.band] ?? 0, node.depth + 1);
    return { nodes, edges: present, widths };
  }
}

interface Lead { distinct: Search[]; search: Search; read: Map<string, number>; query: GraphNode; question: string[] }

// Links a query to the used passage of an earlier search that names what is searched for: the whole query, or a word of
// it that the question does not have.
function leads(builder: Builder, view: View, { distinct, search, read, query, question }: Lead): void {
  const asked = forms(search.query);
  const known = new Set(question);
  const fresh = asked.filter((form) => form.length > 3 && !known.has(form));
  for (const earlier of distinct.filter((one) => one.index < search.index).reverse()) {
    const texts = earlier.hits.filter((hit) => read.get(hit.passage.id) === earlier.index).map((hit) => ({ hit, words: forms(hit.passage.title + " " + hit.passage.text) }));
    const from = texts.find(({ words }) => placeOf(asked, words) >= 0) ?? texts.find(({ words }) => fresh.some((form) => words.includes(form)));
    if (!from) continue;
    // The edge to a search whose passages were not used is not lit.
    builder.edge("p" + from.hit.passage.id, query.id, 0.5, view.over && [...read.values()].includes(search.index), "led");
    return;
  }
}

const massOf = (search: Search) => (hit: Hit) => {
  const walked = search.hits.every((one) => one.path?.graph);
  return Math.max(0, walked ? hit.path.graph!.mass : Number(hit.score) || 0);
};

// Share of a hit in the mass of the graph walk, else in the sum of scores.
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
  const lighted = walked.filter((hit) => used.has(hit.passage.id));
  const facts = (run.walks[search.index]?.facts ?? []).filter((fact) => fact.kept !== false).slice(0, 6);
  // Paths to unused passages would only hide the paths to used ones.
  const shown = lighted.length ? lighted : walked.filter((hit) => hit.rank <= 2);
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
      const node = builder.node({ id: "f" + search.index + label, kind: "fact", label, depth: 1, lit });
      builder.edge(from, node.id, share(hit), lit);
      from = node.id;
    }
    via.forEach(({ phrase }, index) => {
      const depth = 1 + lead + index;
      const node = builder.node({ id: "w" + search.index + " " + phrase, kind: "phrase", label: phrase, depth, lit });
      builder.edge(from, node.id, share(hit), lit);
      from = node.id;
    });
    builder.edge(from, "p" + hit.passage.id, share(hit), lit);
  }
  return lead + deepest;
}

interface Choice { used: Set<string>; lastSeen: Map<string, number>; all: boolean; depth: number }

function passages(builder: Builder, search: Search, { used, lastSeen, all, depth }: Choice): void {
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
    if (here) builder.node({ id, kind: "passage", label: titleOf(hit.passage), depth, lit, search, hit });
    // A passage hangs on the last phrase of its way where that is shown.
    if (!builder.isReached(id, search.index)) builder.edge(query, id, share(hit), lit && here);
  }
  if (hidden) {
    const id = "m" + search.index;
    builder.node({ id, kind: "more", label: hidden + " more that were not used", depth, lit: false, search, hidden });
    builder.edge(query, id, 0, false);
  }
  if (search.done && !search.hits.length) {
    builder.node({ id: "m" + search.index, kind: "more", label: search.error ? "the search failed" : "nothing found", depth, lit: false, search, hidden: 0 });
    builder.edge(query, "m" + search.index, 0, false);
  }
}

function answer(builder: Builder, view: View): void {
  // Without the signs of Markdown.
  const text = view.answer.replace(/[#*`>|]+/g, " ").replace(/\s+/g, " ").trim();
  if (!text) return;
  builder.band = Math.max(0, builder.band - 1);
  builder.node({ id: "a", kind: "answer", depth: builder.width(), label: text.length > 120 ? text.slice(0, text.lastIndexOf(" ", 118) + 1 || 118).trimEnd() + " …" : text, lit: true });
  for (const source of sourcesOf(view)) builder.edge("p" + source.passage.id, "a", 0.5, true, "supports");
}
