// A run and its view, live while it streams.
import { type Signal, signal } from "@preact/signals";
import { type Said, runAgent } from "../api/agent";
import { explain, get, inPath, send } from "../api/client";
import { index, policyNamed, searches as canSearch } from "../api/server";
import type { Triple, Walk } from "../api/types";
import { type Run, type Settings, type View, newRun, record } from "./run";
import { usedPassages } from "./sources";
import { viewOf } from "./view";

export class Live {
  readonly view: Signal<View>;
  readonly running = signal(false);
  private controller: AbortController | null = null;
  private drawn = 0;

  constructor(readonly run: Run) {
    this.view = signal(viewOf(run));
  }

  static ask(question: string, settings: Settings, before: Run["before"]): Live {
    return new Live(newRun(question, settings, before));
  }

  stop(): void {
    this.controller?.abort();
  }

  // Shows what came, at most once per frame: tokens come faster than a screen.
  private show(): void {
    if (this.drawn) return;
    this.drawn = requestAnimationFrame(() => {
      this.drawn = 0;
      this.view.value = viewOf(this.run);
    });
  }

  refresh(): void {
    this.view.value = viewOf(this.run);
  }

  async perform(): Promise<void> {
    const { run } = this;
    this.controller = new AbortController();
    this.running.value = true;
    const { signal: stop } = this.controller;
    try {
      for await (const event of this.events(stop)) {
        record(run, event);
        this.show();
        if (event.type === "search_finished") void this.explainWalk();
      }
    } catch (error) {
      if (stop.aborted) run.stopped = true;
      else run.failure = explain(error);
    } finally {
      run.took = Date.now() - run.started;
      this.refresh();
      this.running.value = false;
      this.controller = null;
    }
    await this.addFacts();
  }

  private events(stop: AbortSignal) {
    const { question, settings, before } = this.run;
    const protocol = policyNamed(settings.model)?.protocol ?? "";
    const history = before.flatMap((one): Said[] => [
      { role: "user", content: one.question },
      { role: "assistant", content: one.answer },
    ]);
    return runAgent({ question, history, ...settings, seed: null, searches: canSearch(protocol) }, stop);
  }

  // Name of the index that the run searched. Empty if it is the one that a request without a name searches, which
  // Explore shows.
  indexOf(view: View): string {
    const own = this.run.index ?? policyNamed(view.model)?.index ?? "";
    return own === "default" || own === index.value?.name ? "" : own;
  }

  // Address at which the server looks into the index that the run searched.
  private addressed(path: string, view: View): string {
    const own = this.indexOf(view);
    return own ? path + (path.includes("?") ? "&" : "?") + "index=" + encodeURIComponent(own) : path;
  }

  // Fetches the facts and first phrases of the latest graph search, which are not among the events, by repeating the
  // search with `explain`.
  private async explainWalk(): Promise<void> {
    const view = viewOf(this.run);
    const search = view.searches.at(-1);
    if (!search || search.cached || search.error || !["graph", "hybrid"].includes(search.mode)) return;
    try {
      const body = { query: search.query, mode: search.mode, k: Math.max(1, search.hits.length), explain: true };
      const found = await send<{ snapshot: number; walk?: Walk }>(this.addressed("/v1/search", view), body);
      if (found.walk && found.snapshot === search.snapshot) {
        this.run.walks[search.index] = { ...found.walk, facts: found.walk.facts.slice(0, 8), phrases: found.walk.phrases.slice(0, 8) };
        this.show();
      }
    } catch {
      // The graph is drawn without them.
    }
  }

  // Fetches the facts of at most 16 passages: first of the used ones, then of other hits.
  async addFacts(): Promise<void> {
    const view = viewOf(this.run);
    if (!view.searches.length) return;
    const used = [...usedPassages(view)];
    const others = view.searches.flatMap((search) => search.hits.slice(0, 5).map((hit) => hit.passage.id));
    const ids = [...new Set([...used, ...others])].filter((id) => !this.run.facts[id]).slice(0, 16);
    await Promise.all(ids.map(async (id) => {
      try {
        const path = this.addressed("/v1/index/passages/" + inPath(id) + "?limit=100", view);
        const { triples } = await get<{ triples: { data: Triple[] } }>(path);
        this.run.facts[id] = triples.data.map(({ subject, relation, object }) => ({ subject, relation, object }));
      } catch {
        // The document is gone, or the server does not return facts.
      }
    }));
    this.refresh();
  }
}
