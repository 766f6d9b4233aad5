// The part of the index's graph that is on the screen.
import { signal } from "@preact/signals";
import Graph from "graphology";
import { index } from "../api/server";
import { get } from "../api/client";
import { type IndexEdge, type IndexNode, type NodeKind, type Neighbors, keyOf, neighbors, reason } from "./api";

export const graph = new Graph({ type: "undirected", multi: false });
export const selected = signal<{ kind: NodeKind; id: string } | null>(null);
// Neighbors of nodes that were opened, by key.
export const opened = signal<Record<string, Neighbors>>({});
export const failure = signal("");
export const note = signal("");
// Counts changes of the graph, for its drawing.
export const version = signal(0);

// Number of neighbors that the first click on a node fetches. Each further click adds twice as many, up to `MOST`.
const FIRST = 16;
const MOST = 200;

let snapshot: number | null = null;
// Number of the graph that is on the screen. Replies that were asked for by an earlier one are dropped.
let generation = 0;

export function reset(): void {
  generation += 1;
  graph.clear();
  selected.value = null;
  opened.value = {};
  failure.value = note.value = "";
  snapshot = null;
  version.value += 1;
}

export async function startAt(start: string): Promise<void> {
  const match = /^(phrase|passage):([^]+)$/.exec(start);
  if (match) await find(match[1] as NodeKind, match[2]);
  else if (!graph.order) await begin();
}

// Draws something before the first search: the neighborhood of the subject of the first example question.
async function begin(): Promise<void> {
  const begun = generation;
  try {
    const { data } = await get<{ data: { facts: { subject: string }[]; passage?: { id: string } }[] }>("/v1/index/questions?limit=1");
    if (begun !== generation) return;
    const first = data[0];
    const subject = first?.facts?.[0]?.subject;
    if (subject && index.value?.graph) await expand("phrase", subject, true);
    else if (first?.passage) await expand("passage", first.passage.id, true);
  } catch {
    // The graph stays empty until the user searches.
  }
}

// Opens a node that was searched for. A node that is not drawn yet starts a new graph.
export async function find(kind: NodeKind, id: string): Promise<void> {
  if (!graph.hasNode(keyOf({ kind, id }))) reset();
  await expand(kind, id);
}

// True if a further click on a node brings in more neighbors.
export const isExpandable = ({ has_more, edges }: Neighbors) => has_more && edges.length < MOST;

export async function expand(kind: NodeKind, id: string, quiet = false): Promise<void> {
  const key = keyOf({ kind, id });
  // Without a graph a passage has no neighbors to fetch. Its panel fetches its text.
  const alone = kind === "passage" && index.value !== null && !index.value.graph;
  if (!quiet || (alone && !selected.value)) selected.value = { kind, id };
  failure.value = "";
  const known = opened.value[key];
  if (alone || (known && !isExpandable(known))) return;
  const begun = generation;
  try {
    const found = await neighbors(kind, id, Math.min(MOST, known ? known.edges.length + FIRST * 2 : FIRST));
    if (begun !== generation) return;
    if (snapshot !== null && found.snapshot !== snapshot) note.value = "The index was changed meanwhile: what is drawn mixes two versions.";
    snapshot = found.snapshot;
    add(found);
    opened.value = { ...opened.value, [keyOf(found.node)]: found };
    if (selected.value && keyOf(selected.value) === key) selected.value = { kind: found.node.kind, id: found.node.id };
    if (quiet && !selected.value) selected.value = { kind: found.node.kind, id: found.node.id };
    version.value += 1;
  } catch (error) {
    if (!quiet && begun === generation) failure.value = reason(error, "infer");
  }
}

function add({ node, edges }: Neighbors): void {
  const center = place(node, null, 0);
  edges.forEach((edge, index) => {
    const other = place(edge.node, center, (index / edges.length) * 2 * Math.PI);
    if (!graph.hasEdge(center, other)) graph.addEdge(center, other, { size: Math.min(5, 1 + edge.weight), kinds: edge.kinds, relation: relationOf(edge) });
  });
}

export const relationOf = (edge: IndexEdge) => edge.facts[0]?.relation ?? (edge.kinds.includes("synonym") ? "same as" : "");

// New nodes begin around the one that brought them in, always at the same places.
function place(node: IndexNode, center: string | null, angle: number): string {
  const key = keyOf(node);
  if (graph.hasNode(key)) return key;
  const from = center ? graph.getNodeAttributes(center) : { x: graph.order ? 10 : 0, y: 0 };
  const x = from.x + (center ? Math.cos(angle) * 3 : 0);
  const y = from.y + (center ? Math.sin(angle) * 3 : 0);
  graph.addNode(key, { x, y, kind: node.kind, id: node.id, label: node.label || node.id, degree: node.degree });
  return key;
}
