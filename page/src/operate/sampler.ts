// Samples of the engine's load in the last minutes, and rates computed from its totals.

export interface Load {
  phase: string;
  seconds: number;
  requests: number;
  sessions: { running: number; waiting: number; parked: number; stalled: number };
  blocks: { tokens: number; total: number; free: number; cached: number; used: number };
  totals: {
    prefill_tokens: number; recomputed_tokens: number; prefix_hit_tokens: number; decode_tokens: number;
    steps: number; turns: number; preemptions: number; evictions: number; searches: number; client_searches: number;
  };
  index: { snapshot: number; passages: number; stale: boolean } | null;
}

export interface Session { id: number; request: string | null; state: string; tokens: number; blocks: number; age_seconds: number }

const MOST = 120;

export class Sampler {
  private readonly kept: Load[] = [];

  take(load: Load): void {
    // If the uptime decreased, the server was restarted.
    if (this.last && load.seconds < this.last.seconds) this.kept.length = 0;
    this.kept.push(load);
    if (this.kept.length > MOST) this.kept.shift();
  }

  get last(): Load | undefined {
    return this.kept.at(-1);
  }

  series(of: (load: Load) => number): number[] {
    return this.kept.map(of);
  }

  rates(of: (load: Load) => number): number[] {
    return this.kept.slice(1).map((load, at) => {
      const before = this.kept[at];
      const time = load.seconds - before.seconds;
      return time > 0 ? Math.max(0, of(load) - of(before)) / time : 0;
    });
  }

  // Mean of the last four rates, so that the figure is steady enough to read.
  rate(of: (load: Load) => number): number {
    const last = this.rates(of).slice(-4);
    return last.length ? last.reduce((sum, rate) => sum + rate, 0) / last.length : 0;
  }

  hitSeries(): number[] {
    return this.kept.slice(1).map((load, at) => share(this.kept[at], load));
  }

  hits(): number {
    const first = this.kept.at(-40) ?? this.kept[0];
    return this.last && first ? share(first, this.last) : 0;
  }
}

function share(before: Load, now: Load): number {
  const grown = (of: keyof Load["totals"]) => now.totals[of] - before.totals[of];
  const hit = grown("prefix_hit_tokens");
  const all = hit + grown("prefill_tokens") - grown("recomputed_tokens");
  return all > 0 ? (100 * hit) / all : 0;
}
