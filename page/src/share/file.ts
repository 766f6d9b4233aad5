// A run as a file: a page of its own that opens in any browser, without a server. It holds this page's script and
// style, and the run as data.
import { offline } from "../api/server";
import type { Run } from "../run/run";
import { viewOf } from "../run/view";
import { writeRun } from "./read";

// The file may run its own script, and reach no server.
const POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

// Text of this page's style or script. A saved page reaches no server, and holds both as elements.
async function source(name: string, element: string): Promise<string> {
  if (offline) return document.querySelector(element)?.textContent ?? "";
  const response = await fetch("/page/" + name);
  if (!response.ok) throw new Error("The server does not give a part of the page.");
  return await response.text();
}

export async function fileOf(run: Run): Promise<Blob> {
  const [style, script] = await Promise.all([source("app.css", "style"), source("saved.js", "script[type=module]")]);
  // No text inside can end its element: `</` never appears in JSON written this way.
  const data = writeRun(run).replace(/</g, "\\u003c");
  const safe = (text: string) => text.replace(/<\/(style|script)/gi, "<\\/$1");
  return new Blob([
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    "<meta http-equiv=\"Content-Security-Policy\" content=\"", POLICY, "\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>", title(run), "</title>\n",
    "<style>", safe(style), "</style>\n</head>\n<body>\n<div id=\"app\"></div>\n",
    "<script type=\"application/json\" id=\"run\">", data, "</script>\n",
    "<script type=\"module\">", safe(script), "</script>\n</body>\n</html>\n",
  ], { type: "text/html" });
}

const title = (run: Run) => run.question.slice(0, 200).replace(/[&<>"]/g, (one) => "&#" + one.charCodeAt(0) + ";") + " · Waymark";

export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(content);
  link.click();
  // A browser that asks where to save it may take a while to read it.
  setTimeout(() => URL.revokeObjectURL(link.href), 600_000);
}

export function fileName(run: Run): string {
  const words = run.question.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 48);
  return "waymark-" + (words || run.id);
}

// Answer or refusal as plain text, followed by the numbered titles of its sources.
export function asText(run: Run, sources: { number: number; title: string }[]): string {
  const { answer, refusal } = viewOf(run);
  const list = sources.map((source) => "[" + source.number + "] " + source.title);
  return [(answer || refusal).trim(), ...(list.length ? ["", ...list] : [])].join("\n");
}
