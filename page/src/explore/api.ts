// The index as a graph, node by node.
import { Refused, call, explain, get, inPath, send } from "../api/client";
import { indexState } from "../api/server";
import { wait } from "../api/agent";
import type { FileDocuments } from "./files";

export type NodeKind = "phrase" | "passage";
export interface IndexNode { kind: NodeKind; id: string; label: string; degree: number; preview?: string; match?: string }
export interface IndexFact { subject: string; relation: string; object: string; passages: string[] }
export interface IndexEdge { node: IndexNode; weight: number; kinds: string[]; facts: IndexFact[]; cosine: number | null }
export interface Neighbors { snapshot: number; node: IndexNode; edges: IndexEdge[]; total: number; has_more: boolean }
export interface Found { snapshot: number; phrases: IndexNode[]; passages: IndexNode[]; complete: boolean }

export interface Stated { subject: string; relation: string; object: string; subject_phrase: string; object_phrase: string }
export interface IndexPassage {
  snapshot: number;
  id: string;
  title: string;
  text: string;
  metadata: Record<string, unknown> | null;
  previous: string | null;
  next: string | null;
  triples: { origin: string; total: number; has_more: boolean; data: Stated[] };
}

export interface Listed { data: { id: string; title: string; text: string }[]; has_more: boolean; snapshot: number }

export interface CommitStatus {
  id: string;
  status: "queued" | "running" | "done" | "failed";
  progress?: { phase: string; done: number; total: number | null };
  commit?: { added: number; replaced: number; unchanged: number; removed: number; documents: number; snapshot: number };
  error?: { message: string };
}

export const keyOf = (node: { kind: NodeKind; id: string }) => node.kind + ":" + node.id;

export const search = (q: string, signal?: AbortSignal) =>
  get<Found>("/v1/index/nodes?limit=8&q=" + encodeURIComponent(q), signal);

export const neighbors = (kind: NodeKind, id: string, limit: number, signal?: AbortSignal) =>
  get<Neighbors>("/v1/index/neighbors?" + kind + "=" + encodeURIComponent(id) + "&limit=" + limit, signal);

// A passage with a page of its facts: the first 20, and at most 100 after `offset` others.
export const passage = (id: string, offset: number, signal?: AbortSignal) =>
  get<IndexPassage>("/v1/index/passages/" + inPath(id) + "?limit=" + (offset ? 100 : 20) + "&offset=" + offset, signal);

export const documents = (after: string) =>
  get<Listed>("/v1/documents?limit=20" + (after ? "&after=" + encodeURIComponent(after) : ""));

export interface Upload { id: string; title: string; text: string; triples?: unknown; metadata?: unknown }

export interface Change { documents?: Upload[]; delete?: string[]; chunked?: Record<string, number> }

// Sends a change and follows it until it is committed.
export async function change(made: Change, tell: (status: CommitStatus) => void): Promise<CommitStatus> {
  let status = await send<CommitStatus>("/v1/documents", { documents: [], ...made, wait: false });
  for (;;) {
    tell(status);
    if (status.status === "done" || status.status === "failed") return status;
    await wait(400);
    status = await (await call("/v1/commits/" + inPath(status.id))).json();
  }
}

// Explains an error of a view to the user, with the setting or the scope that is missing.
export function reason(error: unknown, scope: string): string {
  const lacking = error instanceof Refused && error.code === "not_configured";
  // The server says the same of an index that lacks a graph.
  if (lacking && indexState.value === "none") return "This server has no index. Start it with --index, see the page Ask.";
  if (error instanceof Refused && error.status === 403 && error.code === "insufficient_scope") return "Your API key lacks the scope “" + scope + "” that this needs.";
  if (error instanceof Refused && error.code === "not_found") return "This server is older than this page and cannot show this.";
  return explain(error);
}

// Bytes of the documents of one request, well below the server's default limit of 2 MiB (`--body-limit`).
const REQUEST_BYTES = 1_500_000;

// Sends the documents of files, in as many requests as they need, and adds up what was committed.
export async function upload({ documents, chunked }: FileDocuments, tell: (status: CommitStatus) => void): Promise<CommitStatus> {
  const requests = batches(documents);
  const sum = { added: 0, replaced: 0, unchanged: 0, removed: 0 };
  for (const [at, part] of requests.entries()) {
    const isLast = at === requests.length - 1;
    const done = await change({ documents: part, ...(isLast ? { chunked } : {}) }, tell);
    if (done.status === "failed" || !done.commit) return done;
    for (const name of Object.keys(sum) as (keyof typeof sum)[]) sum[name] += done.commit[name];
    if (isLast) return { ...done, commit: { ...done.commit, ...sum } };
  }
  throw new Error("The files hold no documents.");
}

function batches(documents: Upload[]): Upload[][] {
  const all: Upload[][] = [];
  let room = 0;
  for (const document of documents) {
    const bytes = new Blob([JSON.stringify(document)]).size;
    if (bytes > room || !all.length) {
      all.push([]);
      room = REQUEST_BYTES;
    }
    all.at(-1)!.push(document);
    room -= bytes;
  }
  return all;
}
