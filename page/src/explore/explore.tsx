// The view Explore: the index as a graph, its documents, and changing them.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { bytesInWords, index, indexName, indexState, readIndex } from "../api/server";
import { count } from "../run/query";
import { Documents } from "./documents";
import { Graph } from "./graph-view";
import { Finder } from "./finder";
import { PassagePanel, PhrasePanel } from "./panel";
import { expand, failure, note, reset, selected, startAt } from "./state";

export function Explore({ start }: { start: string }) {
  const tab = useSignal<"graph" | "documents">("graph");
  useEffect(() => {
    if (indexState.value === "unknown") void readIndex();
    void startAt(start);
  }, [start]);
  const known = index.value;
  if (indexState.value === "none") {
    return (
      <section class="explore">
        <h1>Explore</h1>
        <p class="notice">This server has no index. Build one with <code>waymark index build --corpus my-documents/ --out my.index</code> and start the server with <code>--index my.index</code>.</p>
      </section>
    );
  }
  return (
    <section class="explore">
      <h1>Explore</h1>
      {known && (
        <p class="lead">
          {count(known.passages, "passage")} of <bdi>{indexName(known)}</bdi>
          {known.graph ? <> · {count(known.graph.facts, "fact")} between {count(known.graph.phrases, "name")}</> : " · no graph"}
          {" "}· {bytesInWords(known.bytes)} · version {known.snapshot}{known.committed && <> of {new Date(known.committed * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}</>}
        </p>
      )}
      {known?.stale && <p class="notice">A newer version of the index exists that this server cannot open yet.</p>}
      <div class="tabs" role="tablist" aria-label="Parts of the index">
        {(["graph", "documents"] as const).map((name) => (
          <button
            key={name} role="tab" id={"tab-" + name} aria-selected={tab.value === name} aria-controls="tab-panel" tabIndex={tab.value === name ? 0 : -1}
            onClick={() => { tab.value = name; }}
            onKeyDown={(event) => { if (event.key === "ArrowRight" || event.key === "ArrowLeft") { tab.value = name === "graph" ? "documents" : "graph"; document.getElementById("tab-" + tab.value)?.focus(); } }}
          >{name === "graph" ? "Graph" : "Documents"}</button>
        ))}
      </div>
      <div role="tabpanel" id="tab-panel" aria-labelledby={"tab-" + tab.value}>
        {tab.value === "graph" ? <GraphTab /> : <Documents />}
      </div>
    </section>
  );
}

function GraphTab() {
  const at = selected.value;
  return (
    <>
      <Finder />
      {failure.value && <p class="notice bad" role="alert">{failure.value}</p>}
      {note.value && <p class="notice" role="status">{note.value} <button onClick={reset}>Start anew</button></p>}
      <div class="atlas">
        <Graph />
        <aside class="panel" aria-label="What is selected" aria-live="polite">
          {!at && <p class="dim">Search for a name or a document, or choose a point of the graph. A choice brings in its neighbors, the closest first.</p>}
          {at?.kind === "phrase" && <PhrasePanel id={at.id} open={expand} />}
          {at?.kind === "passage" && <PassagePanel id={at.id} open={expand} />}
        </aside>
      </div>
    </>
  );
}
