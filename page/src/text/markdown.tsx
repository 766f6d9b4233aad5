// Markdown as elements. Marked reads it, and nothing that it read ever becomes markup: each token is built as an
// element of a known kind with text inside, and HTML in an answer is shown as it is written.
import { Lexer, type Token, type Tokens } from "marked";
import type { ComponentChildren, VNode } from "preact";
import { pieces, unmarked } from "./markers";

type Cite = (numbers: number[]) => VNode;

const lexer = (text: string) => new Lexer({ gfm: true, breaks: true }).lex(text);

export function Markdown({ text, cite }: { text: string; cite: Cite }) {
  return <div class="prose" dir="auto">{blocks(lexer(text), cite)}</div>;
}

function blocks(tokens: Token[], cite: Cite): ComponentChildren {
  return tokens.map((token) => block(token, cite));
}

function block(token: Token, cite: Cite): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return heading(token as Tokens.Heading, cite);
    case "paragraph":
      return <p dir="auto">{inlines((token as Tokens.Paragraph).tokens, cite)}</p>;
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return tokens ? inlines(tokens, cite) : written(text, cite);
    }
    case "code":
      return code(token as Tokens.Code, cite);
    case "blockquote":
      return <blockquote>{blocks((token as Tokens.Blockquote).tokens, cite)}</blockquote>;
    case "list":
      return list(token as Tokens.List, cite);
    case "table":
      return table(token as Tokens.Table, cite);
    case "hr":
      return <hr />;
    default:
      return <p dir="auto">{written(token.raw, cite)}</p>;
  }
}

// The page has headings of its own: those of an answer stand below them.
function heading({ depth, tokens }: Tokens.Heading, cite: Cite) {
  const inside = inlines(tokens, cite);
  if (depth <= 1) return <h3 class="large">{inside}</h3>;
  return depth === 2 ? <h3>{inside}</h3> : <h4>{inside}</h4>;
}

function code({ text, lang }: Tokens.Code, cite: Cite) {
  const cited = pieces(text).filter((piece) => typeof piece !== "string") as number[][];
  return (
    <>
      <pre tabIndex={0} role="group" aria-label={"Code" + (lang ? ", " + unmarked(lang) : "")} dir="ltr"><code>{unmarked(text)}</code></pre>
      {cited.length > 0 && <p>{cited.map((numbers) => cite(numbers))}</p>}
    </>
  );
}

function list({ ordered, start, items }: Tokens.List, cite: Cite) {
  const inside = items.map((item) => (
    <li dir="auto">
      {item.task && <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? "done" : "not done"} />}
      {blocks(item.tokens, cite)}
    </li>
  ));
  return ordered ? <ol start={Number(start) || 1}>{inside}</ol> : <ul>{inside}</ul>;
}

function table({ header, rows }: Tokens.Table, cite: Cite) {
  const align = (cell: Tokens.TableCell) => (cell.align ? "to-" + cell.align : undefined);
  return (
    <div class="wide" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead><tr>{header.map((cell) => <th scope="col" class={align(cell)}>{inlines(cell.tokens, cite)}</th>)}</tr></thead>
        <tbody>
          {rows.map((row) => <tr>{row.map((cell) => <td class={align(cell)} dir="auto">{inlines(cell.tokens, cite)}</td>)}</tr>)}
        </tbody>
      </table>
    </div>
  );
}

function inlines(tokens: Token[] | undefined, cite: Cite): ComponentChildren {
  return (tokens ?? []).map((token) => inline(token, cite));
}

function inline(token: Token, cite: Cite): ComponentChildren {
  switch (token.type) {
    case "strong":
      return <strong>{inlines(token.tokens, cite)}</strong>;
    case "em":
      return <em>{inlines(token.tokens, cite)}</em>;
    case "del":
      return <del>{inlines(token.tokens, cite)}</del>;
    case "codespan":
      return <><code dir="ltr">{unmarked(token.text)}</code>{marks(token.text, cite)}</>;
    case "br":
      return <br />;
    case "link":
      return link(token as Tokens.Link, cite);
    case "image":
      // Nothing is fetched from elsewhere: an image is its description.
      return <em>{written((token as Tokens.Image).text || (token as Tokens.Image).href, cite)}</em>;
    case "escape":
      return written((token as Tokens.Escape).text, cite);
    case "text": {
      const { tokens, text } = token as Tokens.Text;
      return tokens ? inlines(tokens, cite) : written(text, cite);
    }
    default:
      return written(token.raw, cite);
  }
}

function link({ href, tokens, text }: Tokens.Link, cite: Cite) {
  const inside = tokens?.length ? inlines(tokens, cite) : written(text, cite);
  const address = unmarked(href);
  if (!/^(https?|mailto):/i.test(address)) return <>{inside}</>;
  return <a href={address} target="_blank" rel="noopener noreferrer nofollow">{inside}</a>;
}

const marks = (text: string, cite: Cite) => pieces(text).map((piece) => (typeof piece === "string" ? null : cite(piece)));

const NAMED: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0" };

// Text with its marks as citations, and its entities as the characters they stand for.
function written(text: string, cite: Cite): ComponentChildren {
  return pieces(text).map((piece) => (typeof piece === "string" ? decoded(piece) : cite(piece)));
}

function decoded(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|([a-z]{2,4}));/gi, (whole, decimal, hex, name) => {
    if (name) return NAMED[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}
