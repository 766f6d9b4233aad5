// What is known of a chosen point: its neighbors, and of a passage its text and facts.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { count } from "../run/query";
import { ask, newConversation } from "../ask/conversation";
import { policies } from "../api/server";
import { go } from "../shell/route";
import { type IndexEdge, type IndexPassage, type NodeKind, keyOf, passage, reason } from "./api";
import { opened } from "./state";

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
      {known.has_more && <button onClick={() => void open(kind, id)}>Show more of {known.total}</button>}
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
  const read = async (limit: number) => {
    try {
      found.value = await passage(id, limit);
      failure.value = "";
    } catch (error) {
      failure.value = reason(error, "infer");
    }
  };
  useEffect(() => {
    found.value = null;
    void read(20);
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
      {shown.triples.has_more && <button onClick={() => void read(100)}>Show more</button>}
    </>
  );
}
