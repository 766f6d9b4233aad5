// The sources of an answer, as cards with the words that support it.
import type { Live } from "../run/live";
import { count } from "../run/query";
import { type Source, titleOf } from "../run/sources";
import { support } from "../run/words";
import { MarkedText, excerpt } from "../text/marked-text";
import { pin } from "./card-state";

const SHOWN = 6;

export function Sources({ live, sources }: { live: Live; sources: Source[] }) {
  if (!sources.length) return null;
  const more = sources.length - SHOWN;
  return (
    <div class="sources" role="group" aria-label="Sources">
      <ol>
        {sources.slice(0, SHOWN).map((source) => <Item key={source.number} live={live} source={source} />)}
      </ol>
      {more > 0 && (
        <details>
          <summary>{count(more, "more source")}</summary>
          <ol>{sources.slice(SHOWN).map((source) => <Item key={source.number} live={live} source={source} />)}</ol>
        </details>
      )}
    </div>
  );
}

function Item({ live, source }: { live: Live; source: Source }) {
  const { passage, claims, number } = source;
  const part = excerpt(passage.text, support(claims[0], passage.text), 190);
  return (
    <li>
      <button
        class="source"
        onClick={(event) => pin({ live, passage, claims, number, anchor: event.currentTarget, pinned: true })}
      >
        <span class="source-title"><span class="number">{number}</span> <bdi>{titleOf(passage)}</bdi></span>
        <span class="source-text" dir="auto"><MarkedText text={part.text} ranges={part.ranges} /></span>
      </button>
    </li>
  );
}
