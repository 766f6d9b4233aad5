// Entry point of the page.
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { signal } from "@preact/signals";
import { Ask } from "./ask/ask";
import { card, close } from "./ask/card-state";
import { conversation, isRunning, openRun, stop } from "./ask/conversation";
import { Compare } from "./compare/compare";
import { running as isComparing, stop as stopComparison } from "./compare/state";
import { connection, discover, offline } from "./api/server";
import { explain } from "./api/client";
import { Operate } from "./operate/operate";
import { Lazy } from "./explore/lazy";
import { readRun } from "./share/read";
import { runInLink } from "./share/link";
import { Guard } from "./shell/guard";
import { KeyQuestion } from "./shell/key";
import { route } from "./shell/route";
import { Side } from "./shell/side";
import { Toast, say } from "./shell/toast";
import { list } from "./store/history";

const cut = signal(!navigator.onLine);

function App() {
  const { name } = route.value;
  // A card closes when the view or the conversation that it was opened from changes.
  useEffect(() => { card.value = null; }, [name, conversation.value.id]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <Side />
      <main id="main" tabIndex={-1}>
        {cut.value && !offline && <p class="notice bad" role="status">This device is offline. What is kept here can still be read.</p>}
        {!offline && <KeyQuestion />}
        <Guard key={name + " " + conversation.value.id}>
          {name === "ask" && <Ask />}
          {name === "compare" && <Compare />}
          {name === "explore" && <Lazy />}
          {name === "operate" && <Operate />}
        </Guard>
      </main>
      <Toast />
    </>
  );
}

async function begin(): Promise<void> {
  render(<App />, document.getElementById("app")!);
  const inFile = document.getElementById("run")?.textContent;
  try {
    if (inFile) openRun(readRun(inFile));
    const linked = await runInLink(location.hash);
    if (linked) openRun(linked);
  } catch (error) {
    say("The run cannot be shown: " + explain(error));
  }
  await Promise.all([inFile ? null : list(), discover()]);
}

addEventListener("offline", () => { cut.value = true; });
addEventListener("online", () => {
  cut.value = false;
  if (connection.value === "down") void discover();
});
addEventListener("hashchange", () => {
  void runInLink(location.hash).then((run) => { if (run) openRun(run); }, (error) => say("The run cannot be shown: " + explain(error)));
});
document.addEventListener("keydown", (event) => {
  // An input method ends a composition by Escape. In Safari the code of that Escape, 229, is the only sign of it.
  if (event.key !== "Escape" || event.isComposing || event.keyCode === 229 || event.defaultPrevented) return;
  if (card.value) close();
  else if (route.value.name === "compare") stopComparison();
  else if (route.value.name === "ask") stop();
});
document.addEventListener("pointerdown", (event) => {
  const inside = (event.target as Element).closest("#card, .citation, .source, .hit, .node");
  if (card.value && !inside) card.value = null;
});
addEventListener("beforeunload", (event) => { if (isRunning() || isComparing()) event.preventDefault(); });

void begin();
