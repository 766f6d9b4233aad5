// The view Explore, whose script is fetched only when it is opened: it holds the graph's renderer.
import { type FunctionComponent } from "preact";
import { signal } from "@preact/signals";
import { offline } from "../api/server";
import { route } from "../shell/route";

// True in the script that saved runs carry, which has no index to look at.
declare const SAVED: boolean;

const view = signal<FunctionComponent<{ start: string }> | null>(null);
const failure = signal("");
let asked = false;

async function fetchView(): Promise<void> {
  try {
    if (!SAVED) view.value = (await import("./explore")).Explore;
    failure.value = "";
  } catch {
    asked = false;
    failure.value = "This part of the page cannot be fetched: the server does not respond.";
  }
}

export function Lazy() {
  if (offline) return <section class="explore"><h1>Explore</h1><p>A saved run has no index to look at. Open Waymark’s page on a server.</p></section>;
  if (!asked) {
    asked = true;
    void fetchView();
  }
  const View = view.value;
  if (View) return <View start={route.value.rest} />;
  return (
    <section class="explore">
      <h1>Explore</h1>
      {failure.value ? <p class="notice bad" role="alert">{failure.value} <button onClick={() => void fetchView()}>Try again</button></p> : <p class="dim">Loading …</p>}
    </section>
  );
}
