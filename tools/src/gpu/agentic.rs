//! Agentic load: loops that generate, search, append the evidence, and continue.
//!
//! The generated text does not matter: every turn generates the same number of tokens, searches once, and appends an
//! observation of the same length. The load measures the use of the KV cache between turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::future::join_all;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use waymark_agent::Search;
use waymark_agent::metric::quantile;
use waymark_engine::{Engine, Generate, Origin, Session, SessionOptions};
use waymark_models::sampler::SamplingParams;
use waymark_runtime::evaluate::SearchMethod;

use super::report::AgenticLoad;
use super::shape::ModelShape;

/// Mode of submitting the turns of a loop to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnMode {
    /// One session per loop, parked while a search runs.
    Parked,
    /// Every turn is a new request with the whole text so far, whose prefix may be cached.
    Resubmitted,
    /// Every turn is a new request without prefix cache hits.
    Cold,
}

impl TurnMode {
    pub(super) const ALL: [Self; 3] = [Self::Parked, Self::Resubmitted, Self::Cold];

    /// Returns the name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Resubmitted => "resubmitted",
            Self::Cold => "resubmitted, no cache",
        }
    }
}

/// Parameters of the agentic load. Parameters missing from a report are read as zero, so its loads are not
/// compared with complete ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AgenticScript {
    pub(super) loops: usize,
    pub(super) turns: usize,
    /// Tokens of the initial prompt.
    pub(super) prompt: usize,
    /// Tokens generated per turn.
    pub(super) written: usize,
    /// Tokens of the observation after each turn but the last.
    pub(super) observed: usize,
}

/// Search between turns.
#[derive(Debug, Clone)]
pub(super) enum SearchSource {
    /// Searches an index by this method for these questions.
    Index(Arc<dyn Search>, Arc<SearchMethod>, Arc<Vec<String>>),
    /// Waits for this time instead of searching.
    Wait(Duration),
}

impl SearchSource {
    /// Returns the fixed wait per search; zero with an index.
    fn wait(&self) -> Duration {
        match self {
            Self::Index(..) => Duration::ZERO,
            Self::Wait(time) => *time,
        }
    }
}

impl AgenticScript {
    /// Runs all loops concurrently. `round` seeds the prompts, so runs share no prefixes.
    pub(super) async fn run(
        self,
        engine: &Engine,
        shape: &ModelShape,
        source: &SearchSource,
        way: TurnMode,
        round: u64,
    ) -> anyhow::Result<AgenticLoad> {
        let counters = engine.counters();
        let read = || {
            let counts = [
                &counters.prefill_tokens_total,
                &counters.prefix_cache_hit_tokens_total,
                &counters.prefill_tokens_recomputed_total,
            ];
            counts.map(waymark_engine::Counter::get)
        };
        let before = read();
        let begun = Instant::now();
        let running: Vec<_> = (0..self.loops)
            .map(|number| {
                let one = AgenticLoop {
                    script: self,
                    engine: engine.clone(),
                    source: source.clone(),
                    way,
                    number,
                    vocab: shape.config.vocab as u32,
                    random: ChaCha8Rng::seed_from_u64(round << 32 | number as u64),
                };
                tokio::spawn(one.run())
            })
            .collect();
        let mut resumed = Vec::new();
        // Wait for all before returning the first error, so the next measurement has the engine to itself.
        for one in join_all(running).await {
            resumed.extend(one??);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let after = read();
        let [computed, cached, again] = [0, 1, 2].map(|at| after[at] - before[at]);
        let recomputed = match way {
            TurnMode::Parked => again,
            // Counted from totals, since a new request does not know the previous one: prefill tokens beyond the
            // minimum of a parked session were computed twice.
            _ => computed.saturating_sub(self.min_prefill_tokens()),
        };
        Ok(AgenticLoad {
            shape: shape.name.clone(),
            way: way.name().to_owned(),
            script: self,
            searched: matches!(source, SearchSource::Index(..)),
            search_ms: source.wait().as_millis() as f64,
            questions_per_second: self.loops as f64 / seconds,
            resume_p50: quantile(&mut resumed, 0.5),
            resume_p95: quantile(&mut resumed, 0.95),
            computed,
            cached,
            recomputed,
        })
    }

    /// Minimum number of prefill tokens: each prompt and each observation once, and the last generated token before
    /// each observation, which was sampled but not yet computed.
    fn min_prefill_tokens(&self) -> u64 {
        (self.loops * (self.prompt + (self.turns - 1) * (self.observed + 1))) as u64
    }
}

/// One loop of the agentic load.
struct AgenticLoop {
    script: AgenticScript,
    engine: Engine,
    source: SearchSource,
    way: TurnMode,
    number: usize,
    vocab: u32,
    random: ChaCha8Rng,
}

impl AgenticLoop {
    /// Runs the loop. Returns the milliseconds from each search to the next token.
    async fn run(mut self) -> anyhow::Result<Vec<f64>> {
        let AgenticScript { turns, prompt, .. } = self.script;
        let ids: Vec<u32> = (0..prompt).map(|_| self.random.random_range(0..self.vocab)).collect();
        let mut session = self.engine.session(self.options(0));
        session.append(&ids, Origin::Prompt, false);
        let mut resumed = Vec::new();
        let mut found = None;
        for turn in 0..turns {
            let first = self.write(&mut session).await?;
            resumed.extend(found.map(|found: Instant| (first - found).as_secs_f64() * 1e3));
            if turn + 1 == turns {
                break;
            }
            let seen = self.search(turn).await?;
            found = Some(Instant::now());
            if self.way != TurnMode::Parked {
                let ids: Vec<u32> = session.tokens().iter().map(|token| token.id).collect();
                session = self.engine.session(self.options(turn + 1));
                session.append(&ids, Origin::Prompt, false);
            }
            session.append(&seen, Origin::Environment, false);
        }
        Ok(resumed)
    }

    /// Returns session options; sessions with equal salt share cached prefixes.
    fn options(&self, turn: usize) -> SessionOptions {
        // Sessions with a salt of their own find nothing in the prefix cache.
        let alone = 1 + (self.number * self.script.turns + turn) as u64;
        SessionOptions { salt: if self.way == TurnMode::Cold { alone } else { 0 }, ..SessionOptions::default() }
    }

    /// Generates a turn and returns the time of its first token.
    async fn write(&self, session: &mut Session) -> anyhow::Result<Instant> {
        let sampling = SamplingParams { seed: self.number as u64, ..SamplingParams::default() };
        let generate = Generate { sampling, max_tokens: self.script.written, ignore_eos: true, ..Generate::default() };
        let mut turn = session.generate(generate).await?;
        let mut first = None;
        while let Some(step) = turn.next().await {
            step?;
            first.get_or_insert_with(Instant::now);
        }
        first.context("the turn ended without a token")
    }

    /// Searches and returns an observation of the configured length, made of the evidence.
    async fn search(&mut self, turn: usize) -> anyhow::Result<Vec<u32>> {
        let source = self.source.clone();
        let observed = self.script.observed;
        match source {
            SearchSource::Wait(time) => {
                tokio::time::sleep(time).await;
                Ok((0..observed).map(|_| self.random.random_range(0..self.vocab)).collect())
            }
            SearchSource::Index(search, mode, questions) => {
                let question = &questions[(self.number * self.script.turns + turn) % questions.len()];
                let evidence = search.search(mode.query(question, 3).into()).await?;
                let text: Vec<u8> = evidence.hits.iter().flat_map(|hit| hit.passage.text.bytes()).collect();
                // Random weights have no tokenizer: every byte stands for a token.
                let bytes = text.iter().chain(std::iter::once(&b'.')).cycle();
                Ok(bytes.take(observed).map(|byte| u32::from(*byte) % self.vocab).collect())
            }
        }
    }
}
