// A run as a link. All of it stands behind the `#`, which browsers do not send: no server sees it.
import type { Run } from "../run/run";
import { readRun, writeRun } from "./read";

// Longest link that mail programs and chats still take, in characters.
const LONGEST = 30_000;

export async function linkOf(run: Run): Promise<string | null> {
  if (typeof CompressionStream === "undefined") return null;
  const bytes = new TextEncoder().encode(writeRun(run));
  const packed = await through(bytes, new CompressionStream("deflate-raw"));
  const link = location.href.split("#")[0] + "#run=" + base64(packed);
  return link.length > LONGEST ? null : link;
}

export async function runInLink(hash: string): Promise<Run | null> {
  const match = /^#run=([\w-]+)$/.exec(hash);
  if (!match) return null;
  const bytes = await through(unbase64(match[1]), new DecompressionStream("deflate-raw"));
  return readRun(new TextDecoder().decode(bytes));
}

// A small link may unpack to very much: more than this is no run of anybody's.
const MOST = 64 << 20;

async function through(bytes: Uint8Array, stream: CompressionStream | DecompressionStream): Promise<Uint8Array> {
  const reader = new Blob([bytes as BlobPart]).stream().pipeThrough(stream as ReadableWritablePair<Uint8Array, Uint8Array>).getReader();
  const parts: BlobPart[] = [];
  let size = 0;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > MOST) throw new Error("the link holds too much");
    parts.push(value as BlobPart);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function base64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

function unbase64(text: string): Uint8Array {
  const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(binary, (one) => one.charCodeAt(0));
}
