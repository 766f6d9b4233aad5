// Lines between the nodes of a graph, from where they stand in the page.
import type { Arrangement } from "./arrange";
import type { GraphEdge, PathGraph } from "./graph";

export interface DrawnEdge { id: string; d: string; width: number; lit: boolean }
export interface Drawn { width: number; height: number; edges: DrawnEdge[] }

interface Spot { left: number; right: number; top: number; x: number; y: number; floor: number }
type Line = (from: Spot, to: Spot, edge: GraphEdge) => string | null;

const round = (value: number) => Math.round(value * 10) / 10;

function spots(box: HTMLElement): Map<string, Spot> {
  const origin = box.getBoundingClientRect();
  const found = new Map<string, Spot>();
  for (const dot of box.querySelectorAll<HTMLElement>("[data-node]")) {
    const at = dot.getBoundingClientRect();
    const node = dot.parentElement!.getBoundingClientRect();
    found.set(dot.dataset.node!, {
      left: round(at.left - origin.left), right: round(node.right - origin.left), top: round(node.top - origin.top),
      // Below all of its row.
      floor: round((dot.closest(".band")?.getBoundingClientRect().bottom ?? node.bottom) - origin.top + 14),
      x: round((at.left + at.right) / 2 - origin.left), y: round((at.top + at.bottom) / 2 - origin.top),
    });
  }
  return found;
}

const thickness = (edge: GraphEdge) => Math.round((1 + 4.5 * Math.min(1, edge.share)) * 10) / 10;

export function draw(box: HTMLElement, graph: PathGraph, arrangement: Arrangement): Drawn {
  const at = spots(box);
  const bands = new Map(graph.nodes.map((node) => [node.id, node.band]));
  const line: Line = arrangement === "down" ? downward(new Set()) : arrangement === "across" ? curve : banded(bands);
  const edges = graph.edges.flatMap((edge) => {
    const from = at.get(edge.from);
    const to = at.get(edge.to);
    const same = bands.get(edge.from) === bands.get(edge.to);
    // Lines to what another row shows would cross everything between.
    if (!from || !to || (arrangement !== "across" && !same && (!edge.lit || edge.kind === "found"))) return [];
    const d = line(from, to, edge);
    return d ? [{ id: edge.from + ">" + edge.to, d, width: thickness(edge), lit: edge.lit }] : [];
  });
  // What is lit lies above the rest.
  edges.sort((a, b) => Number(a.lit) - Number(b.lit));
  return { width: box.clientWidth, height: box.clientHeight, edges };
}

function curve(from: Spot, to: Spot): string {
  const bend = round(Math.max(18, Math.abs(to.left - from.right) / 2));
  return `M${from.right} ${from.y}C${from.right + bend} ${from.y} ${to.left - bend} ${to.y} ${to.left} ${to.y}`;
}

// To the next row: down beside the passage, back to the left below its row, and down to the query.
function banded(bands: Map<string, number>): Line {
  return (from, to, edge) => {
    if (bands.get(edge.from) === bands.get(edge.to) || to.left > from.right) return curve(from, to);
    const turn = 10;
    const out = from.right + turn;
    return `M${from.right} ${from.y}Q${out} ${from.y} ${out} ${from.y + turn}V${from.floor - turn}Q${out} ${from.floor} ${out - turn} ${from.floor}`
      + `H${to.x + turn}Q${to.x} ${from.floor} ${to.x} ${from.floor + turn}V${to.y}`;
  };
}

// In a tree: down from the node above, then to the right. To a query or the answer: back over a lane at the left.
function downward(reached: Set<string>): Line {
  return (from, to, edge) => {
    const turn = 9;
    if (edge.kind === "found") {
      if (to.x <= from.x || to.y <= from.y || reached.has(edge.to)) return null;
      reached.add(edge.to);
      return `M${from.x} ${from.y}V${to.y - turn}Q${from.x} ${to.y} ${from.x + turn} ${to.y}H${to.x}`;
    }
    const lane = 7;
    return `M${from.x} ${from.y}H${lane + turn}Q${lane} ${from.y} ${lane} ${from.y + turn}V${to.y - turn}Q${lane} ${to.y} ${lane + turn} ${to.y}H${to.x}`;
  };
}
