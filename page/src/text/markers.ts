// Citations as marks in the text of an answer, put in before it is read as Markdown. Marks are characters of the
// private use area, which are taken out of the text first, so that no answer can write one itself.

export const OPEN = "\uE200";
export const CLOSE = "\uE201";

export interface Place { end: number; numbers: number[] }

export function mark(text: string, places: Place[]): string {
  const characters = [...text].map((one) => (one === OPEN || one === CLOSE ? "\uFFFD" : one));
  const marks = new Map<number, number[]>();
  for (const { end, numbers } of places) {
    const at = fitting(characters, Math.min(end, characters.length));
    marks.set(at, [...(marks.get(at) ?? []), ...numbers]);
  }
  let marked = "";
  for (let at = 0; at <= characters.length; at++) {
    const numbers = marks.get(at);
    if (numbers) marked += OPEN + [...new Set(numbers)].sort((a, b) => a - b).join(",") + CLOSE;
    marked += characters[at] ?? "";
  }
  return marked;
}

// A mark stands inside of the last cell of a table's row, and before the fence that closes a block of code.
function fitting(characters: string[], end: number): number {
  let start = end;
  while (start > 0 && characters[start - 1] !== "\n") start--;
  const line = characters.slice(start, end).join("");
  if (/^\s*(```|~~~)/.test(line)) return Math.max(0, start - 1);
  if (/^\s*\|.*\|\s*$/.test(line)) return start + line.trimEnd().length - 1;
  return end;
}

export type Piece = string | number[];

// Splits a text into plain text and the numbers of each mark.
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let at = 0;
  for (const match of text.matchAll(/\uE200([\d,]*)\uE201/g)) {
    if (match.index > at) found.push(text.slice(at, match.index));
    found.push(match[1].split(",").filter(Boolean).map(Number));
    at = match.index + match[0].length;
  }
  if (at < text.length) found.push(text.slice(at));
  return found;
}

export const unmarked = (text: string) => text.replace(/\uE200[\d,]*\uE201/g, "");
