// A run and its view, live while it streams.
import { type Signal, signal } from "@preact/signals";
import { type Said, runAgent } from "../api/agent";
import { Refused, explain } from "../api/client";
import { index, policyNamed, searches as canSearch } from "../api/server";
import { isLimit, sparing } from "../api/sparing";
import type { AgentEvent } from "../api/types";
import { type Addressed, factsOf, telling, walkOf } from "./details";
import { hopsOf } from "./hops";
import { type Run, type Search, type Settings, type View, newRun, record } from "./run";
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

  static ask(question: string, settings: Settings, before: Run["before"], forgotten = 0): Live {
    return new Live({ ...newRun(question, settings, before), forgotten });
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
    const explaining: Promise<unknown>[] = [];
    const unexplained: Search[] = [];
    try {
      for await (const event of this.events(stop)) {
        record(run, event);
        this.show();
        if (event.type !== "search_finished") continue;
        const search = viewOf(run).searches.at(-1)!;
        explaining.push(this.explainWalk(search).catch((error) => {
          if (isLimit(error)) unexplained.push(search);
        }));
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
    await Promise.all(explaining);
    const detail = sparing();
    // A key with few requests at once has room for these only now that the stream has ended.
    for (const search of unexplained) await detail(() => this.explainWalk(search));
    await this.addFacts(detail);
  }

  // Streams the events. While the conversation is too long for the model, its oldest exchange is left out, as in `waymark
  // chat`.
  private async *events(stop: AbortSignal): AsyncGenerator<AgentEvent> {
    const { run } = this;
    const { question, settings, before, forgotten = 0 } = run;
    const protocol = policyNamed(settings.model)?.protocol ?? "";
    for (let first = forgotten; ; first++) {
      const sent = before.slice(first);
      const history = sent.flatMap((one): Said[] => [
        { role: "user", content: one.question },
        { role: "assistant", content: one.answer },
      ]);
      run.forgotten = first;
      try {
        return yield* runAgent({ question, history, ...settings, seed: null, searches: canSearch(protocol) }, stop);
      } catch (error) {
        // Refused before the first event, so nothing is shown twice.
        const tooLong = error instanceof Refused && error.code === "context_length_exceeded";
        if (tooLong && sent.length) continue;
        // The question alone is too long, so the next one may follow all that this one could have followed.
        if (tooLong) run.forgotten = forgotten;
        throw error;
      }
    }
  }

  // Name of the index that the run searched. Empty if it is the one that a request without a name searches, which
  // Explore shows.
  indexOf(view: View): string {
    const own = this.run.index ?? policyNamed(view.model)?.index ?? "";
    return own === "default" || own === index.value?.name ? "" : own;
  }

  private addressed(view: View): Addressed {
    const own = this.indexOf(view);
    return (path) => (own ? path + (path.includes("?") ? "&" : "?") + "index=" + encodeURIComponent(own) : path);
  }

  // Adds the facts and first phrases of a graph search, as far as the server tells them.
  private async explainWalk(search: Search): Promise<void> {
    const walk = await walkOf(search, this.addressed(viewOf(this.run)));
    if (!walk) return;
    this.run.walks[search.index] = walk;
    this.show();
  }

  // Fetches facts of passages, at least of the used ones, until they lead from the question to the answer.
  async addFacts(detail = sparing()): Promise<void> {
    const view = viewOf(this.run);
    // Without an answer they would lead nowhere.
    if (!view.answer.trim()) return;
    const used = usedPassages(view);
    const addressed = this.addressed(view);
    for (const id of telling(view)) {
      if (this.run.facts[id] || (!used.has(id) && hopsOf(this.run, view).length)) continue;
      const facts = await detail(() => factsOf(id, addressed));
      if (facts) this.run.facts[id] = facts;
    }
    this.refresh();
  }
}
