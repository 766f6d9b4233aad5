// Queries, modes, numbers and durations in words. A policy may write the mode of a search before its query, as in
// `[graph] …`.

const MODES: Record<string, string> = {
  passage: "by words and meaning", graph: "along the graph", hybrid: "by words, meaning and the graph",
  triples: "for facts", kag: "for passages and facts",
};

export const modeInWords = (mode: string) => MODES[mode] ?? mode;

export function parseQuery(wrote: string): { mode: string; query: string } {
  const match = /^\s*\[\s*([a-z_]+)\s*\]\s*([^]*)$/i.exec(wrote);
  return match ? { mode: match[1].toLowerCase(), query: match[2].trim() } : { mode: "", query: wrote.trim() };
}

export const ordinal = (n: number) => {
  const rest = n % 100;
  const suffix = rest > 10 && rest < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th";
  return n + suffix;
};

export const seconds = (ms: number) => (ms < 1000 ? Math.max(1, Math.round(ms)) + " ms" : (ms / 1000).toFixed(ms < 9950 ? 1 : 0) + " s");

export const count = (n: number, one: string, many = one + "s") => n.toLocaleString("en-US") + " " + (n === 1 ? one : many);
