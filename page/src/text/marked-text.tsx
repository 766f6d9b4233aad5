// A passage with the words marked that support an answer.
import type { Range } from "../run/words";

export function MarkedText({ text, ranges }: { text: string; ranges: Range[] }) {
  const parts = [];
  let at = 0;
  for (const { start, end } of ranges) {
    if (start > at) parts.push(text.slice(at, start));
    parts.push(<mark>{text.slice(start, end)}</mark>);
    at = end;
  }
  if (at < text.length) parts.push(text.slice(at));
  return <>{parts}</>;
}

// The part of a passage around its first mark, at most `length` characters, cut between words.
export function excerpt(text: string, ranges: Range[], length: number): { text: string; ranges: Range[] } {
  if (text.length <= length) return { text, ranges };
  const first = ranges[0] ?? { start: 0, end: 0 };
  let start = Math.max(0, first.start - Math.floor(length / 3));
  let end = Math.min(text.length, start + length);
  start = Math.max(0, end - length);
  if (start > 0) start = text.indexOf(" ", start) + 1 || start;
  if (end < text.length) end = Math.max(text.lastIndexOf(" ", end), first.end);
  const lead = start > 0 ? "… " : "";
  const shift = lead.length - start;
  return {
    text: lead + text.slice(start, end) + (end < text.length ? " …" : ""),
    ranges: ranges.filter((range) => range.start >= start && range.end <= end).map((range) => ({ start: range.start + shift, end: range.end + shift })),
  };
}
