// The documents of the index: reading, adding and deleting them.
import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { index, readIndex } from "../api/server";
import { count } from "../run/query";
import { Icon } from "../shell/icon";
import { type CommitStatus, type Listed, change, documents, reason, upload } from "./api";
import { readFiles } from "./files";
import { reset } from "./state";

const PHASES: Record<string, string> = {
  reading: "Reading", embedding: "Computing what they mean", linking: "Linking", extracting: "Finding facts", phrases: "Collecting names",
  facts: "Collecting facts", synonyms: "Finding like names", sealing: "Writing", publishing: "Publishing",
};

export function Documents() {
  const list = useSignal<Listed["data"]>([]);
  const more = useSignal(false);
  const failure = useSignal("");
  const loaded = useSignal(false);
  const status = useSignal<CommitStatus | null>(null);
  const said = useSignal("");
  const asking = useRef({ number: 0, pending: false });
  const read = async (after: string) => {
    const mine = ++asking.current.number;
    asking.current.pending = true;
    try {
      const found = await documents(after);
      // A later request has begun the list anew.
      if (mine !== asking.current.number) return;
      list.value = after ? [...list.value, ...found.data] : found.data;
      more.value = found.has_more;
      failure.value = "";
    } catch (error) {
      if (mine !== asking.current.number) return;
      failure.value = reason(error, "index");
    }
    asking.current.pending = false;
    loaded.value = true;
  };
  const readMore = () => {
    // A second click would fetch the same documents once more.
    if (!asking.current.pending) void read(list.value.at(-1)!.id);
  };
  useEffect(() => { void read(""); }, []);
  const commit = async (act: () => ReturnType<typeof change>) => {
    said.value = "";
    try {
      const done = await act();
      said.value = done.status === "failed" ? "The change failed: " + (done.error?.message ?? "") : summary(done);
      await Promise.all([read(""), readIndex()]);
      reset();
    } catch (error) {
      said.value = reason(error, "index");
    }
    status.value = null;
  };
  const tell = (next: CommitStatus) => { status.value = next; };
  const add = async (event: Event) => {
    const input = event.currentTarget as HTMLInputElement;
    const files = [...(input.files ?? [])];
    input.value = "";
    await commit(async () => upload(await readFiles(files), tell));
  };
  const forget = (id: string, title: string) => {
    if (confirm("Delete “" + (title || id) + "” from the index?")) void commit(() => change({ delete: [id] }, tell));
  };
  const writable = index.value?.writable ?? false;
  const busy = status.value !== null;
  return (
    <div class="documents">
      {failure.value && <p class="notice bad" role="alert">{failure.value}</p>}
      {!failure.value && writable && (
        <div class="row">
          <label class={"button primary" + (busy ? " disabled" : "")}>
            <Icon name="plus" /> Add documents
            <input type="file" class="hidden" id="upload" multiple accept=".txt,.md,.jsonl" disabled={busy} onChange={add} />
          </label>
          <span class="dim">Text, Markdown, or JSON lines with id, title and text</span>
        </div>
      )}
      <div role="status">
        {status.value && <Progress status={status.value} />}
        {said.value && <p class="notice">{said.value}</p>}
      </div>
      {loaded.value && !failure.value && !list.value.length && <p class="dim">The index holds no documents.</p>}
      <ul class="document-list">
        {list.value.map(({ id, title, text }) => (
          <li key={id}>
            <details>
              <summary dir="auto"><bdi>{title || id}</bdi> <span class="dim">{id}</span></summary>
              <p class="passage-text" dir="auto">{text}</p>
              <p class="row">
                <a class="button quiet" href={"#/explore/" + encodeURIComponent("passage:" + id)}>Its facts</a>
                {writable && <button class="quiet" disabled={busy} onClick={() => forget(id, title)}><Icon name="trash" /> Delete</button>}
              </p>
            </details>
          </li>
        ))}
      </ul>
      {more.value && <button onClick={readMore}>Show more</button>}
    </div>
  );
}

function Progress({ status }: { status: CommitStatus }) {
  const { progress } = status;
  const words = status.status === "queued" ? "Waiting for its turn …" : (PHASES[progress?.phase ?? ""] ?? "Working") + " …";
  return (
    <p class="progress">
      <label for="change">{words}</label>
      <progress id="change" max={progress?.total ?? undefined} value={progress?.total ? progress.done : undefined} />
      {progress?.total ? <span class="dim">{progress.done} of {progress.total}</span> : null}
    </p>
  );
}

function summary({ commit }: CommitStatus): string {
  if (!commit) return "Done.";
  const { added, replaced, unchanged, removed, documents: all } = commit;
  const parts = [added && count(added, "document") + " added", replaced && replaced + " replaced", removed && removed + " deleted", unchanged && unchanged + " unchanged"];
  return "Done: " + (parts.filter(Boolean).join(", ") || "nothing changed") + ". The index now holds " + count(all, "passage") + ".";
}
