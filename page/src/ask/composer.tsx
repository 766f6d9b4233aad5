// Field for a question, with its options below.
import { useEffect, useRef } from "preact/hooks";
import { connection, firstPolicy, indexState, index, policies, policyNamed, searches } from "../api/server";
import { Icon } from "../shell/icon";
import { ask, chosenModel, draft, isRunning, settings, stop } from "./conversation";

export function Composer({ follow }: { follow?: boolean }) {
  const field = useRef<HTMLTextAreaElement>(null);
  const running = isRunning();
  useEffect(() => {
    // On a phone, focus would open the keyboard over the examples.
    if (!follow && matchMedia("(hover: hover)").matches) field.current?.focus();
  }, [follow]);
  useEffect(() => {
    const area = field.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = Math.min(area.scrollHeight + 2, 220) + "px";
  }, [draft.value]);
  const send = (event: Event) => {
    event.preventDefault();
    void ask(draft.value);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    // Safari ends a composition before the Enter that confirms it, whose code is 229.
    const composing = event.isComposing || event.keyCode === 229;
    if (event.key === "Enter" && !event.shiftKey && !composing) send(event);
  };
  return (
    <form class="composer" onSubmit={send}>
      <label class="hidden" for="question">{follow ? "Follow-up question" : "Question"}</label>
      <div class="field">
        <textarea
          id="question" ref={field} rows={1} dir="auto" value={draft.value} enterkeyhint="send"
          placeholder={follow ? "Ask a follow-up" : indexState.value === "none" ? "Ask the model" : "Ask your documents"}
          onInput={(event) => { draft.value = event.currentTarget.value; }} onKeyDown={onKeyDown}
        />
        {running
          ? <button type="button" class="primary round" id="stop" aria-label="Stop" onClick={stop}><Icon name="stop" /></button>
          : <button class="primary round" id="ask" aria-label="Ask" disabled={!draft.value.trim() || connection.value === "asking"}><Icon name="send" /></button>}
      </div>
      <Options />
    </form>
  );
}

const MODES = [
  { value: "passage", title: "words and meaning" },
  { value: "graph", title: "graph" },
  { value: "hybrid", title: "words, meaning and graph" },
];

// Number of passages that was typed, at most 200, which is the most that the server accepts; null if there is none.
export function passagesIn(typed: string): number | null {
  const k = Math.floor(Number(typed));
  return k >= 1 ? Math.min(200, k) : null;
}

export function Options() {
  const chosen = chosenModel();
  const protocol = policyNamed(chosen)?.protocol ?? "";
  const change = (part: Partial<typeof settings.value>) => { settings.value = { ...settings.value, ...part }; };
  const modes = MODES.filter((mode) => !index.value || index.value.modes.includes(mode.value));
  return (
    <div class="options">
      <label>
        <span>Policy</span>
        <select id="model" value={chosen} onChange={(event) => change({ model: event.currentTarget.value })}>
          {policies.value.map((one) => (
            <option value={one.id} disabled={indexState.value === "none" && searches(one.protocol)}>{one.id}</option>
          ))}
          {!policies.value.length && <option value="">{firstPolicy.value?.id ?? "as served"}</option>}
        </select>
      </label>
      {searches(protocol) ? (
        <>
          <label>
            <span>Search</span>
            <select id="mode" value={settings.value.mode} onChange={(event) => change({ mode: event.currentTarget.value })}>
              <option value="">policy’s choice</option>
              {modes.map(({ value, title }) => <option value={value}>{title}</option>)}
            </select>
          </label>
          <label>
            <span>Passages</span>
            <input
              id="k" type="number" min={1} max={200} placeholder="auto" value={settings.value.k ?? ""}
              onInput={(event) => change({ k: passagesIn(event.currentTarget.value) })}
            />
          </label>
        </>
      ) : protocol && <span class="dim">answers by itself, without searching</span>}
    </div>
  );
}
