// Files as documents: JSON lines as they are; text and Markdown in passages of some paragraphs each.
import type { Upload } from "./api";

// Length of a passage, in characters: about what the default embedder reads.
const LONG = 1000;
const MOST_BYTES = 24 << 20;

// Documents of files, and for each text the number of documents that it was cut into, 0 if it was not.
export interface FileDocuments { documents: Upload[]; chunked: Record<string, number> }

export async function readFiles(files: File[]): Promise<FileDocuments> {
  if (!files.length) throw new Error("No file was chosen.");
  const bytes = files.reduce((sum, file) => sum + file.size, 0);
  if (bytes > MOST_BYTES) throw new Error("These files are too much for one upload. Use `waymark index add` on the server.");
  const chunked: Record<string, number> = {};
  const read = await Promise.all(files.map(async (file) => {
    const text = await file.text();
    if (file.name.endsWith(".jsonl")) return lines(text, file.name);
    const parts = passages(text, file.name);
    chunked[file.name] = parts.length > 1 ? parts.length : 0;
    return parts;
  }));
  return { documents: read.flat(), chunked };
}

function lines(text: string, name: string): Upload[] {
  return text.split("\n").flatMap((line, at) => {
    if (!line.trim()) return [];
    const place = name + ", line " + (at + 1);
    let value: unknown;
    try {
      value = JSON.parse(line);
    } catch {
      throw new Error(place + ": this is no JSON.");
    }
    if (!isObject(value)) throw new Error(place + ": this is no JSON object.");
    const { id, title, text: body, triples, metadata: own, ...rest } = value;
    if (typeof id !== "string" || typeof body !== "string") throw new Error(place + ": needs the strings “id” and “text”.");
    const given = own ?? {};
    if (!isObject(given)) throw new Error(place + ": “metadata” is no object.");
    // As `waymark index add` reads a line: a field next to `metadata` replaces one of the same name in it.
    const metadata = { ...given, ...rest };
    return [{ id, title: typeof title === "string" ? title : "", text: body, ...(triples ? { triples } : {}), ...(Object.keys(metadata).length ? { metadata } : {}) }];
  });
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);

function passages(text: string, name: string): Upload[] {
  const title = /^#\s+(.+)$/m.exec(text)?.[1].trim() ?? name.replace(/\.[^.]+$/, "");
  const parts: string[] = [];
  for (const paragraph of text.split(/\n\s*\n/).map((one) => one.trim()).filter(Boolean)) {
    const last = parts.at(-1);
    if (last !== undefined && last.length + paragraph.length < LONG) parts[parts.length - 1] = last + "\n\n" + paragraph;
    else parts.push(paragraph);
  }
  if (!parts.length) throw new Error(name + " is empty.");
  return parts.map((part, at) => ({ id: parts.length > 1 ? name + "#" + (at + 1) : name, title, text: part }));
}
