// The graph of an answer. Its nodes are elements of the page, laid out by the style sheet: in columns where there is
// room, else one below the other. The edges are drawn behind them, from where the nodes then are.
import { useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { pin } from "../ask/card-state";
import type { Live } from "../run/live";
import { count } from "../run/query";
import { sourcesOf } from "../run/sources";
import { type Drawn, drawTall, drawWide } from "./edges";
import { type GraphNode, type PathGraph, graphOf } from "./graph";

// Narrowest column, in pixels, that holds a title.
const COLUMN = 160;

export function Path({ live }: { live: Live }) {
  const view = live.view.value;
  const expanded = useSignal<ReadonlySet<number>>(new Set());
  const graph = graphOf(live.run, view, expanded.value);
  const box = useRef<HTMLDivElement>(null);
  const wide = useSignal(true);
  const drawn = useSignal<Drawn>({ width: 0, height: 0, edges: [] });
  const measure = () => {
    const element = box.current;
    if (!element) return;
    wide.value = element.clientWidth >= graph.columns * COLUMN;
    drawn.value = (wide.value ? drawWide : drawTall)(element, graph);
  };
  const latest = useRef(measure);
  latest.current = measure;
  const shape = graph.nodes.map((node) => node.id + node.label + node.lit).join() + graph.edges.length + graph.edges.filter((edge) => edge.lit).length + wide.value;
  useLayoutEffect(() => latest.current(), [shape]);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => latest.current());
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const more = (search: number) => { expanded.value = new Set([...expanded.value, search]); };
  return (
    <div class="see" role="group" aria-label="How the answer was found">
      <h3>{live.running.value ? "The way so far" : "How it was found"}</h3>
      <div class={"path " + (wide.value ? "across" : "down")} ref={box}>
        <svg class="edges" width={drawn.value.width} height={drawn.value.height} aria-hidden="true" focusable="false">
          {drawn.value.edges.map((edge) => <path key={edge.id} d={edge.d} class={"edge " + edge.kind + (edge.lit ? " lit" : "")} stroke-width={edge.width} />)}
        </svg>
        {columns(graph).map((nodes, index) => (
          <ol key={index} class="column">
            {nodes.map((node) => <li key={node.id}><Node live={live} node={node} more={more} /></li>)}
          </ol>
        ))}
      </div>
    </div>
  );
}

function columns(graph: PathGraph): GraphNode[][] {
  const found: GraphNode[][] = Array.from({ length: graph.columns }, () => []);
  for (const node of graph.nodes) found[node.column].push(node);
  return found;
}

const KINDS: Record<GraphNode["kind"], string> = {
  query: "Search", fact: "Fact", phrase: "Name", passage: "Passage", more: "", answer: "Answer",
};

function Node({ live, node, more }: { live: Live; node: GraphNode; more: (search: number) => void }) {
  const shape = "node " + (node.kind === "answer" ? "goal" : node.kind) + (node.lit ? " lit" : "");
  const label = (
    <>
      <span class="dot" data-node={node.id} aria-hidden="true" />
      <span class="label">
        {KINDS[node.kind] && <span class="kind">{KINDS[node.kind]}{(node.times ?? 1) > 1 && <> · asked {count(node.times!, "time")}</>}</span>}
        <bdi>{node.label}</bdi>
      </span>
    </>
  );
  if (node.kind === "passage" && node.hit) {
    const { passage } = node.hit;
    const source = sourcesOf(live.view.value).find((one) => one.passage.id === passage.id);
    return (
      <button class={shape} onClick={(event) => pin({ live, passage, claims: source?.claims ?? [], number: source?.number ?? null, anchor: event.currentTarget, pinned: true })}>
        {label}
      </button>
    );
  }
  if (node.kind === "more" && node.hidden) return <button class={shape} onClick={() => more(node.search!.index)}>{label}</button>;
  return <div class={shape}>{label}</div>;
}
