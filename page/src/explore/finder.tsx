// A field that finds names and documents while one types.
import { useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { Icon } from "../shell/icon";
import { type Found, type IndexNode, reason, search } from "./api";
import { find } from "./state";

export function Finder() {
  const typed = useSignal("");
  const found = useSignal<Found | null>(null);
  const failure = useSignal("");
  const asking = useRef<{ timer: number; controller: AbortController | null }>({ timer: 0, controller: null });
  const cancel = () => {
    clearTimeout(asking.current.timer);
    asking.current.controller?.abort();
  };
  const look = (text: string) => {
    typed.value = text;
    cancel();
    if (!text.trim()) {
      found.value = null;
      return;
    }
    asking.current.timer = window.setTimeout(async () => {
      const controller = new AbortController();
      asking.current.controller = controller;
      try {
        found.value = await search(text.trim().slice(0, 256), controller.signal);
        failure.value = "";
      } catch (error) {
        if (!controller.signal.aborted) failure.value = reason(error, "infer");
      }
    }, 160);
  };
  const choose = (node: IndexNode) => {
    cancel();
    found.value = null;
    typed.value = node.label || node.id;
    void find(node.kind, node.id);
  };
  const all = found.value ? [...found.value.phrases, ...found.value.passages] : [];
  return (
    <form class="finder" role="search" onSubmit={(event) => { event.preventDefault(); if (all[0]) choose(all[0]); }}>
      <label class="hidden" for="find">Find a name or a document</label>
      <div class="field">
        <Icon name="search" />
        <input id="find" type="search" autocomplete="off" dir="auto" placeholder="Find a name or a document" value={typed.value} onInput={(event) => look(event.currentTarget.value)} />
      </div>
      {failure.value && <p class="bad">{failure.value}</p>}
      <div aria-live="polite">
        {found.value && (
          all.length ? (
            <ul class="matches">
              {all.map((node) => (
                <li>
                  <button type="button" onClick={() => choose(node)}>
                    <span class={"swatch " + node.kind} aria-hidden="true" /> <bdi>{node.label || node.id}</bdi>
                    <span class="dim"> {node.kind === "phrase" ? "name" : "passage"} · {node.degree} {node.degree === 1 ? "link" : "links"}</span>
                    {node.preview && <span class="preview dim" dir="auto">{node.preview}</span>}
                  </button>
                </li>
              ))}
            </ul>
          ) : <p class="dim">Nothing is called so.</p>
        )}
      </div>
    </form>
  );
}
