// The question for an API key, asked only by servers that want one.
import { useSignal } from "@preact/signals";
import { key, keyWanted } from "../api/client";
import { discover, models } from "../api/server";

export function KeyQuestion() {
  const typed = useSignal("");
  const failed = useSignal(false);
  if (!keyWanted.value) return null;
  const use = async (event: Event) => {
    event.preventDefault();
    const given = typed.value.trim();
    // No key has other characters, and most of them cannot be sent in a header.
    if (!/^[\x21-\x7e]+$/.test(given)) {
      failed.value = true;
      return;
    }
    key.value = given;
    keyWanted.value = false;
    await discover();
    failed.value = keyWanted.value;
    if (!failed.value) typed.value = "";
  };
  return (
    <form class="notice key" onSubmit={use}>
      <label for="key">
        <strong>{failed.value ? "The server does not know this key." : "This server asks for an API key."}</strong>{" "}
        It stays in this page and is forgotten when you close it.
      </label>
      <div class="row">
        <input
          id="key" type="password" autocomplete="off" required value={typed.value}
          onInput={(event) => { typed.value = event.currentTarget.value; }}
        />
        <button class="primary">Use key</button>
        {models.value.length > 0 && <button type="button" class="quiet" onClick={() => { keyWanted.value = false; }}>Not now</button>}
      </div>
    </form>
  );
}
