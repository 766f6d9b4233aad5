// Arrangements of a graph: all in one row of columns, each search in a row of its own, or a tree for narrow screens.
import type { GraphNode, PathGraph } from "./graph";

export type Arrangement = "across" | "bands" | "down";

// Narrowest column, in pixels, that holds a title.
const COLUMN = 160;

export const columnsOf = (graph: PathGraph) => graph.widths.reduce((sum, width) => sum + width, 0);

// True if the graph deserves more width than a text.
export const isBroad = (graph: PathGraph) => columnsOf(graph) > 5;

export function fitting(graph: PathGraph, width: number): Arrangement {
  if (columnsOf(graph) * COLUMN <= width) return "across";
  return Math.max(...graph.widths) * COLUMN <= width ? "bands" : "down";
}

// Rows of columns of nodes.
export function rows(graph: PathGraph, arrangement: Arrangement): GraphNode[][][] {
  const bands = graph.widths.map((width, band) =>
    Array.from({ length: width }, (_, depth) => graph.nodes.filter((node) => node.band === band && node.depth === depth)));
  if (arrangement === "across") return [bands.flat()];
  // Every row gets the same number of columns, so that columns align.
  const most = Math.max(...graph.widths);
  return bands.map((band) => [...band, ...Array.from({ length: most - band.length }, () => [])]);
}

export interface Branch { node: GraphNode; indent: number; parent: string | null }

// The nodes as a tree, each below the first that leads to it.
export function tree(graph: PathGraph): Branch[] {
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  const seen = new Set<string>();
  const branches: Branch[] = [];
  const visit = (node: GraphNode, indent: number, parent: string | null) => {
    if (seen.has(node.id)) return;
    seen.add(node.id);
    branches.push({ node, indent, parent });
    for (const edge of graph.edges) {
      const next = edge.from === node.id && edge.kind === "found" ? byId.get(edge.to) : undefined;
      if (next && next.band === node.band) visit(next, indent + 1, node.id);
    }
  };
  for (const node of graph.nodes) if (node.kind === "query") visit(node, 0, null);
  for (const node of graph.nodes) visit(node, 0, null);
  return branches;
}
