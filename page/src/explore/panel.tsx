// Details of a chosen point: neighbors of a phrase, or text and facts of a passage.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { count } from "../run/query";
import { ask, newConversation } from "../ask/conversation";
import { policies } from "../api/server";
import { go } from "../shell/route";
import { type IndexEdge, type IndexPassage, type NodeKind, type Stated, keyOf, passage, reason } from "./api";
import { isExpandable, opened } from "./state";

type Open = (kind: NodeKind, id: string) => Promise<void>;

const KINDS: Record<string, string> = { fact: "", synonym: "nearly the same name", mention: "mentioned here" };

export function PhrasePanel({ id, open }: { id: string; open: Open }) {
  const known = opened.value[keyOf({ kind: "phrase", id })];
  return (
    <>
      <h2><bdi>{known?.node.label ?? id}</bdi></h2>
      <p class="dim">A name in the graph{known && " · " + count(known.total, "link")}</p>
      <NeighborList kind="phrase" id={id} open={open} />
    </>
  );
}

function NeighborList({ kind, id, open }: { kind: NodeKind; id: string; open: Open }) {
  const known = opened.value[keyOf({ kind, id })];
  if (!known) return <p class="dim">Loading …</p>;
  if (!known.edges.length) return <p class="dim">Nothing is linked to it.</p>;
  return (
    <>
      <ul class="neighbors">{known.edges.map((edge) => <li key={keyOf(edge.node)}><Neighbor edge={edge} open={open} /></li>)}</ul>
      {isExpandable(known) && <button onClick={() => void open(kind, id)}>Show more of {known.total}</button>}
      {known.has_more && !isExpandable(known) && <p class="dim">The closest {known.edges.length} of {known.total} are shown.</p>}
    </>
  );
}

function Neighbor({ edge, open }: { edge: IndexEdge; open: Open }) {
  const { node, facts, kinds } = edge;
  return (
    <button onClick={() => void open(node.kind, node.id)}>
      <span class={"swatch " + node.kind} aria-hidden="true" /> <bdi>{node.label || node.id}</bdi>
      {facts.slice(0, 2).map((fact) => <span class="about dim" dir="auto">{fact.subject} {fact.relation} {fact.object}</span>)}
      {!facts.length && <span class="about dim">{kinds.map((kind) => KINDS[kind] ?? kind).filter(Boolean).join(", ")}</span>}
    </button>
  );
}

export function PassagePanel({ id, open }: { id: string; open: Open }) {
  const found = useSignal<IndexPassage | null>(null);
  const failure = useSignal("");
  const reading = useRef<AbortController | null>(null);
  const read = async (known: Stated[]) => {
    reading.current?.abort();
    const controller = reading.current = new AbortController();
    try {
      const page = await passage(id, known.length, controller.signal);
      found.value = { ...page, triples: { ...page.triples, data: [...known, ...page.triples.data] } };
      failure.value = "";
    } catch (error) {
      if (!controller.signal.aborted) failure.value = reason(error, "infer");
    }
  };
  useEffect(() => {
    found.value = null;
    failure.value = "";
    void read([]);
    return () => reading.current?.abort();
  }, [id]);
  const shown = found.value;
  if (failure.value) return <p class="bad">{failure.value}</p>;
  if (!shown) return <p class="dim">Loading …</p>;
  const about = "What is known about " + (shown.title || shown.id) + "?";
  return (
    <>
      <h2 dir="auto">{shown.title || shown.id}</h2>
      <p class="passage-text" dir="auto">{shown.text}</p>
      <p class="row">
        {shown.previous && <button class="quiet" onClick={() => void open("passage", shown.previous!)}>Passage before</button>}
        {shown.next && <button class="quiet" onClick={() => void open("passage", shown.next!)}>Passage after</button>}
        {policies.value.length > 0 && <button class="quiet" onClick={() => { newConversation(); go("ask"); void ask(about); }}>Ask about it</button>}
      </p>
      <h3>{count(shown.triples.total, "fact")}</h3>
      <ul class="stated">
        {shown.triples.data.map((one) => (
          <li dir="auto">
            <button class="name" onClick={() => void open("phrase", one.subject_phrase)}>{one.subject}</button> {one.relation}{" "}
            <button class="name" onClick={() => void open("phrase", one.object_phrase)}>{one.object}</button>
          </li>
        ))}
      </ul>
      {shown.triples.has_more && <button onClick={() => void read(shown.triples.data)}>Show more</button>}
    </>
  );
}
