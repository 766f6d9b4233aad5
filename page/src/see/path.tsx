// The graph of an answer. Its nodes are elements of the page, laid out by the style sheet: in columns where there is
// room, else one below the other. The edges are drawn behind them, from where the nodes then are.
import { useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { pin } from "../ask/card-state";
import type { Live } from "../run/live";
import { count } from "../run/query";
import { sourcesOf } from "../run/sources";
import { type Arrangement, fitting, isBroad, rows, tree } from "./arrange";
import { type Drawn, draw } from "./edges";
import { type GraphNode, graphOf } from "./graph";

export function Path({ live }: { live: Live }) {
  const view = live.view.value;
  const expanded = useSignal<ReadonlySet<number>>(new Set());
  const graph = graphOf(live.run, view, expanded.value);
  const box = useRef<HTMLDivElement>(null);
  const arrangement = useSignal<Arrangement>("across");
  const drawn = useSignal<Drawn>({ width: 0, height: 0, edges: [] });
  const measure = () => {
    const element = box.current;
    if (!element) return;
    arrangement.value = fitting(graph, element.clientWidth);
    drawn.value = draw(element, graph, arrangement.value);
  };
  const latest = useRef(measure);
  latest.current = measure;
  const shape = JSON.stringify([arrangement.value, graph.nodes.map((node) => [node.id, node.label, node.lit]), graph.edges.map((edge) => edge.lit)]);
  useLayoutEffect(() => latest.current(), [shape]);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => latest.current());
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const more = (search: number) => { expanded.value = new Set([...expanded.value, search]); };
  const show = (node: GraphNode) => <Node live={live} node={node} more={more} />;
  return (
    <div class={"see" + (isBroad(graph) ? " broad" : "")} role="group" aria-label="How the answer was found">
      <h3>{live.running.value ? "The way so far" : "How it was found"}</h3>
      <div class={"path " + arrangement.value} ref={box}>
        <svg class="edges" width={drawn.value.width} height={drawn.value.height} aria-hidden="true" focusable="false">
          {drawn.value.edges.map((edge) => <path key={edge.id} d={edge.d} class={"edge" + (edge.lit ? " lit" : "")} stroke-width={edge.width} />)}
        </svg>
        {arrangement.value === "down"
          ? <ol class="column">{tree(graph).map(({ node, indent }) => <li key={node.id} style={{ paddingLeft: Math.min(indent, 5) * 22 + "px" }}>{show(node)}</li>)}</ol>
          : rows(graph, arrangement.value).map((row, at) => (
            <div key={at} class="band">
              {row.map((nodes, column) => (nodes.length
                ? <ol key={column} class="column">{nodes.map((node) => <li key={node.id}>{show(node)}</li>)}</ol>
                : <div key={column} class="column" />))}
            </div>
          ))}
      </div>
    </div>
  );
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
