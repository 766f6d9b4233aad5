// Actions on an answer: copy, share, retry, compare and give feedback.
import { useSignal } from "@preact/signals";
import { explain } from "../api/client";
import { offline } from "../api/server";
import type { Live } from "../run/live";
import { type Source, titleOf } from "../run/sources";
import { asText, download, fileName, fileOf } from "../share/file";
import { linkOf } from "../share/link";
import { Icon } from "../shell/icon";
import { go } from "../shell/route";
import { say } from "../shell/toast";
import { compareWith } from "../compare/state";
import { keepNow, retry } from "./conversation";

export function Actions({ live, sources, last }: { live: Live; sources: Source[]; last: boolean }) {
  const sharing = useSignal(false);
  const { run } = live;
  const running = live.running.value;
  const answered = !!live.view.value.answer.trim();
  return (
    <div class="actions">
      <div class="row">
        {answered && <button class="quiet" onClick={() => void copy(asText(run, titles(sources)), "Answer copied.")}><Icon name="copy" /> Copy</button>}
        <button class="quiet" disabled={running} aria-expanded={sharing.value} onClick={() => { sharing.value = !sharing.value; }}><Icon name="share" /> Share</button>
        {!offline && !run.foreign && last && <button class="quiet" disabled={running} onClick={() => void retry(live)}><Icon name="retry" /> Retry</button>}
        {!offline && run.question && <button class="quiet" disabled={running} onClick={() => { compareWith(run.question); go("compare"); }}><Icon name="compare" /> Compare</button>}
        {!run.foreign && <Feedback live={live} />}
      </div>
      {sharing.value && (
        <div class="row sharing">
          {!offline && <button onClick={() => void shareLink(live)}><Icon name="link" /> Copy link</button>}
          <button onClick={() => void shareFile(live)}><Icon name="file" /> Save as a page</button>
          <span class="dim">It holds the question, the answer and the passages. A saved page opens in any browser, without a server.</span>
        </div>
      )}
    </div>
  );
}

const titles = (sources: Source[]) => sources.map(({ number, passage }) => ({ number, title: titleOf(passage) }));

function Feedback({ live }: { live: Live }) {
  const given = useSignal(live.run.feedback ?? null);
  const give = (value: "good" | "bad") => {
    given.value = given.value === value ? null : value;
    live.run.feedback = given.value;
    void keepNow();
  };
  return (
    <span class="feedback">
      <button class="quiet" aria-pressed={given.value === "good"} aria-label="Good answer" onClick={() => give("good")}><Icon name="good" /></button>
      <button class="quiet" aria-pressed={given.value === "bad"} aria-label="Bad answer" onClick={() => give("bad")}><Icon name="bad" /></button>
    </span>
  );
}

// Copies a text. A page served without TLS by another machine has no clipboard API and copies from a temporary field.
async function copy(text: string, done: string): Promise<void> {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    copied = document.execCommand("copy");
    field.remove();
  }
  say(copied ? done : "The browser does not allow copying.");
}

async function shareLink(live: Live): Promise<void> {
  const link = await linkOf(live.run);
  if (link) await copy(link, "Link copied.");
  else {
    say("This run is too long for a link: it is saved as a page.");
    await shareFile(live);
  }
}

async function shareFile(live: Live): Promise<void> {
  try {
    download(fileName(live.run) + ".html", await fileOf(live.run));
  } catch (error) {
    say(explain(error));
  }
}
