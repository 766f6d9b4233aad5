// Lines between the nodes of a graph, from where they stand in the page.
import type { GraphEdge, PathGraph } from "./graph";

export interface DrawnEdge { id: string; d: string; width: number; lit: boolean; kind: GraphEdge["kind"] }
export interface Drawn { width: number; height: number; edges: DrawnEdge[] }

interface Spot { left: number; right: number; x: number; y: number }

function spots(box: HTMLElement): Map<string, Spot> {
  const origin = box.getBoundingClientRect();
  const found = new Map<string, Spot>();
  for (const dot of box.querySelectorAll<HTMLElement>("[data-node]")) {
    const at = dot.getBoundingClientRect();
    const node = dot.parentElement!.getBoundingClientRect();
    found.set(dot.dataset.node!, {
      left: at.left - origin.left, right: node.right - origin.left + box.scrollLeft,
      x: (at.left + at.right) / 2 - origin.left, y: (at.top + at.bottom) / 2 - origin.top,
    });
  }
  return found;
}

const thickness = (edge: GraphEdge) => Math.round((1 + 4.5 * Math.min(1, edge.share)) * 10) / 10;

function drawn(box: HTMLElement, graph: PathGraph, line: (from: Spot, to: Spot) => string): Drawn {
  const at = spots(box);
  const edges = graph.edges.flatMap((edge) => {
    const from = at.get(edge.from);
    const to = at.get(edge.to);
    if (!from || !to) return [];
    return [{ id: edge.from + ">" + edge.to, d: line(from, to), width: thickness(edge), lit: edge.lit, kind: edge.kind }];
  });
  // What is lit lies above the rest.
  edges.sort((a, b) => Number(a.lit) - Number(b.lit));
  return { width: box.scrollWidth, height: box.scrollHeight, edges };
}

const round = (value: number) => Math.round(value * 10) / 10;

export function drawWide(box: HTMLElement, graph: PathGraph): Drawn {
  return drawn(box, graph, (from, to) => {
    const [x0, x1] = [round(from.right), round(to.left)];
    const [y0, y1] = [round(from.y), round(to.y)];
    const bend = round(Math.max(18, Math.abs(x1 - x0) / 2));
    return `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
  });
}

// One below the other: down a trunk at the left, then to the node.
export function drawTall(box: HTMLElement, graph: PathGraph): Drawn {
  return drawn(box, graph, (from, to) => {
    const [x0, y0, x1, y1] = [from.x, from.y, to.x, to.y].map(round);
    const trunk = Math.min(x0, x1);
    const turn = Math.min(10, Math.abs(y1 - y0) / 2);
    const start = x0 === trunk ? `M${x0} ${y0}` : `M${x0} ${y0}H${trunk + turn}Q${trunk} ${y0} ${trunk} ${y0 + turn}`;
    const end = x1 === trunk ? `V${y1}` : `V${y1 - turn}Q${trunk} ${y1} ${trunk + turn} ${y1}H${x1}`;
    return start + end;
  });
}
