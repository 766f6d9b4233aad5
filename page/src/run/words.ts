// Words as the server's rule of citations compares them: lower case, without ASCII punctuation and English articles
// (`agent/src/citation.rs`), each with its place in the text.

export interface Word { form: string; start: number; end: number }

const ARTICLES = new Set(["a", "an", "the"]);
const PUNCTUATION = /[!-/:-@[-`{-~]/g;

const FUNCTION_WORDS = new Set(("about also and are as at be been being but by did do does for from had has have he her his in "
  + "into is it its of on or she so that their then there these they this those to was were which who whom whose with").split(" "));

// Answers without content of their own, which no passage supports.
export const BARE = new Set(["yes", "no", "true", "false"]);

export function words(text: string): Word[] {
  const found: Word[] = [];
  for (const match of text.matchAll(/\S+/g)) {
    const form = match[0].toLowerCase().replace(PUNCTUATION, "");
    if (!form || ARTICLES.has(form)) continue;
    const lead = match[0].length - match[0].replace(/^[!-/:-@[-`{-~]+/, "").length;
    const tail = match[0].length - match[0].replace(/[!-/:-@[-`{-~]+$/, "").length;
    found.push({ form, start: match.index + lead, end: match.index + match[0].length - tail });
  }
  return found;
}

export const forms = (text: string) => words(text).map((word) => word.form);

// Place of the words `part` in a row among `all`, or -1.
export function placeOf(part: string[], all: string[]): number {
  if (!part.length) return -1;
  for (let at = 0; at + part.length <= all.length; at++) {
    if (part.every((form, index) => all[at + index] === form)) return at;
  }
  return -1;
}

export interface Range { start: number; end: number }

// Places in `text` of the words that support `claim`: the claim itself if the text states it, else its telling words in
// the sentence that holds most of them. Of equal sentences the first counts.
export function support(claim: string, text: string): Range[] {
  const inText = words(text);
  const claimed = forms(claim);
  const at = placeOf(claimed, inText.map((word) => word.form));
  if (at >= 0) return [{ start: inText[at].start, end: inText[at + claimed.length - 1].end }];
  const telling = new Set(claimed.filter((form) => !FUNCTION_WORDS.has(form)));
  if (!telling.size) return [];
  let best: Word[] = [];
  for (const sentence of sentences(text)) {
    const within = inText.filter((word) => word.start >= sentence.start && word.end <= sentence.end && telling.has(word.form));
    if (distinct(within) > distinct(best)) best = within;
  }
  return join(best, text);
}

const distinct = (found: Word[]) => new Set(found.map((word) => word.form)).size;

// Neighboring words become one mark.
function join(found: Word[], text: string): Range[] {
  const ranges: Range[] = [];
  for (const { start, end } of found) {
    const last = ranges.at(-1);
    if (last && /^\s+$/.test(text.slice(last.end, start))) last.end = end;
    else ranges.push({ start, end });
  }
  return ranges;
}

export function sentences(text: string): Range[] {
  const ranges: Range[] = [];
  let start = 0;
  for (const match of text.matchAll(/[.!?。！？]+["'”’)]*\s+|\n+/g)) {
    const end = match.index + match[0].trimEnd().length;
    if (end > start) ranges.push({ start, end });
    start = match.index + match[0].length;
  }
  if (start < text.length) ranges.push({ start, end: text.length });
  return ranges;
}

// Text between two places counted in characters (Unicode scalar values), as citations count them.
export const slice = (text: string, start: number, end: number) => [...text].slice(start, end).join("");
