// The drawing of the index's graph, by sigma. Everything in it is also in the lists beside it, for keyboards and
// screen readers.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import forceAtlas2 from "graphology-layout-forceatlas2";
import Sigma from "sigma";
import type { NodeKind } from "./api";
import { keyOf } from "./api";
import { expand, graph, selected, version } from "./state";

const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function paint(): void {
  const colors: Record<string, string> = { phrase: color("--phrase"), passage: color("--passage") };
  graph.forEachNode((key, { kind, degree }) => {
    const chosen = selected.value && keyOf(selected.value) === key;
    graph.mergeNodeAttributes(key, {
      size: 4 + Math.min(10, Math.sqrt(degree)), color: chosen ? color("--lit") : colors[kind], forceLabel: chosen || graph.order < 40,
    });
  });
  graph.forEachEdge((key) => graph.setEdgeAttribute(key, "color", color("--edge")));
}

function arrange(): void {
  if (graph.order < 2) return;
  const settings = { ...forceAtlas2.inferSettings(graph), gravity: 0.6, scalingRatio: 12, slowDown: 4, adjustSizes: true };
  forceAtlas2.assign(graph, { iterations: graph.order < 200 ? 160 : 60, settings });
}

export function Graph() {
  const box = useRef<HTMLDivElement>(null);
  const drawing = useRef<Sigma | null>(null);
  const impossible = useSignal(false);
  useEffect(() => {
    try {
      drawing.current = new Sigma(graph, box.current!, {
        labelColor: { color: color("--ink") }, labelFont: "system-ui, sans-serif", labelSize: 13, renderEdgeLabels: false,
        allowInvalidContainer: true, labelDensity: 0.7, minCameraRatio: 0.1, maxCameraRatio: 4,
        stagePadding: 48, defaultDrawNodeLabel: labelled, defaultDrawNodeHover: hovered,
      });
      drawing.current.on("clickNode", ({ node }) => {
        const { kind, id } = graph.getNodeAttributes(node) as { kind: NodeKind; id: string };
        void expand(kind, id);
      });
    } catch {
      impossible.value = true;
    }
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const repaint = () => {
      drawing.current?.setSetting("labelColor", { color: color("--ink") });
      paint();
    };
    dark.addEventListener("change", repaint);
    return () => {
      dark.removeEventListener("change", repaint);
      drawing.current?.kill();
      drawing.current = null;
    };
  }, []);
  useEffect(() => { arrange(); }, [version.value]);
  useEffect(() => {
    paint();
    drawing.current?.refresh();
  }, [version.value, selected.value]);
  if (impossible.value) return <p class="notice">This browser cannot draw the graph (it has no WebGL). The lists beside it show the same.</p>;
  return (
    <div class="drawing-frame">
      <div class="drawing" ref={box} role="img" aria-label={"Graph with " + graph.order + " points and " + graph.size + " lines; the lists beside it hold the same"} data-version={version.value} />
      <p class="key dim"><span class="swatch phrase" /> name <span class="swatch passage" /> passage <span class="swatch lit" /> chosen</p>
    </div>
  );
}

interface Point { x: number; y: number; size: number; label: string | null }

// Labels stand right of their points; where the drawing ends before the label does, left of them.
function labelled(context: CanvasRenderingContext2D, { x, y, size, label }: Point): void {
  if (!label) return;
  context.font = "13px system-ui, sans-serif";
  context.fillStyle = color("--ink");
  const width = context.measureText(label).width;
  const before = x + size + 4 + width > context.canvas.clientWidth && x - size - 4 - width > 0;
  context.fillText(label, before ? x - size - 4 - width : x + size + 4, y + 4);
}

// The label of the point under the pointer, on a ground of its own.
function hovered(context: CanvasRenderingContext2D, data: Point): void {
  const label = data.label ?? "";
  context.font = "600 13px system-ui, sans-serif";
  const width = context.measureText(label).width;
  context.fillStyle = color("--card");
  context.strokeStyle = color("--line");
  context.beginPath();
  context.roundRect(data.x + data.size + 1, data.y - 12, width + 12, 24, 6);
  context.fill();
  context.stroke();
  context.fillStyle = color("--ink");
  context.fillText(label, data.x + data.size + 7, data.y + 4);
}
