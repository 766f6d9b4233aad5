//! The agentic load: loops that write, search, read what was found, and write on.
//!
//! What a policy writes does not matter here and is not looked at: every turn writes the same number of tokens, searches
//! once, and reads an observation of the same length. What matters is what becomes of the KV cache between the turns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::future::join_all;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use waymark_models::sampler::SamplingParams;

use super::report::Load;
use super::shape::Shape;
use crate::agent::Search;
use crate::cli::eval::Way as Mode;
use crate::engine::{Engine, Generate, Origin, Session, SessionOptions};
use crate::metric::quantile;

/// How the turns of a loop reach the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// One session: it is parked while a search runs.
    Parked,
    /// Every turn is a new request with the whole text so far; its prefix may be found in the cache.
    Resubmitted,
    /// The same, and nothing is found in the cache.
    Cold,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Parked, Self::Resubmitted, Self::Cold];

    /// For people and reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Resubmitted => "resubmitted",
            Self::Cold => "resubmitted, no cache",
        }
    }
}

/// What the loops do. A report that does not say it has zeros, and is compared with none that does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Script {
    pub(super) loops: usize,
    pub(super) turns: usize,
    /// Tokens of the first prompt.
    pub(super) prompt: usize,
    /// Tokens written per turn.
    pub(super) written: usize,
    /// Tokens read after each turn but the last.
    pub(super) observed: usize,
}

/// What is searched between turns.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// An index, in this way, for these questions.
    Index(Arc<dyn Search>, Mode, Arc<Vec<String>>),
    /// Nothing: a wait that takes as long.
    Wait(Duration),
}

impl Source {
    /// How long every search waits.
    fn wait(&self) -> Duration {
        match self {
            Self::Index(..) => Duration::ZERO,
            Self::Wait(time) => *time,
        }
    }
}

impl Script {
    /// Runs all loops side by side. `round` keeps this run's prompts apart from those of others.
    pub(super) async fn run(
        self,
        engine: &Engine,
        shape: &Shape,
        source: &Source,
        way: Way,
        round: u64,
    ) -> anyhow::Result<Load> {
        let counters = engine.counters();
        let read = || {
            let counts = [
                &counters.prefill_tokens_total,
                &counters.prefix_cache_hit_tokens_total,
                &counters.prefill_tokens_recomputed_total,
            ];
            counts.map(crate::engine::Counter::get)
        };
        let before = read();
        let begun = Instant::now();
        let running: Vec<_> = (0..self.loops)
            .map(|number| {
                let one = One {
                    script: self,
                    engine: engine.clone(),
                    source: source.clone(),
                    way,
                    number,
                    vocab: shape.config.vocab as u32,
                    random: ChaCha8Rng::seed_from_u64(round << 32 | number as u64),
                };
                tokio::spawn(one.play())
            })
            .collect();
        let mut resumed = Vec::new();
        // All have ended before the first failure is told: what is measured next has the engine to itself.
        for one in join_all(running).await {
            resumed.extend(one??);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let after = read();
        let [computed, cached, again] = [0, 1, 2].map(|at| after[at] - before[at]);
        let recomputed = match way {
            Way::Parked => again,
            // A new request knows nothing of the one before: what goes beyond the parked session's share was done twice.
            _ => computed.saturating_sub(self.needed()),
        };
        Ok(Load {
            shape: shape.name.clone(),
            way: way.name().to_owned(),
            script: self,
            searched: matches!(source, Source::Index(..)),
            search_ms: source.wait().as_millis() as f64,
            questions_per_second: self.loops as f64 / seconds,
            resume_p50: quantile(&mut resumed, 0.5),
            resume_p95: quantile(&mut resumed, 0.95),
            computed,
            cached,
            recomputed,
        })
    }

    /// Tokens that have to be computed in prefill at least: each prompt and each observation once, and the last token
    /// written before an observation, which was sampled but never computed.
    fn needed(&self) -> u64 {
        (self.loops * (self.prompt + (self.turns - 1) * (self.observed + 1))) as u64
    }
}

/// One loop.
struct One {
    script: Script,
    engine: Engine,
    source: Source,
    way: Way,
    number: usize,
    vocab: u32,
    random: ChaCha8Rng,
}

impl One {
    /// Plays it; the milliseconds from each search to the token after it.
    async fn play(mut self) -> anyhow::Result<Vec<f64>> {
        let Script { turns, prompt, .. } = self.script;
        let ids: Vec<u32> = (0..prompt).map(|_| self.random.random_range(0..self.vocab)).collect();
        let mut session = self.engine.session(self.options(0));
        session.append(&ids, Origin::Prompt, false);
        let (mut resumed, mut found) = (Vec::new(), None);
        for turn in 0..turns {
            let first = self.write(&mut session).await?;
            resumed.extend(found.map(|found: Instant| (first - found).as_secs_f64() * 1e3));
            if turn + 1 == turns {
                break;
            }
            let seen = self.search(turn).await?;
            found = Some(Instant::now());
            if self.way != Way::Parked {
                let ids: Vec<u32> = session.tokens().iter().map(|token| token.id).collect();
                session = self.engine.session(self.options(turn + 1));
                session.append(&ids, Origin::Prompt, false);
            }
            session.append(&seen, Origin::Environment, false);
        }
        Ok(resumed)
    }

    /// Requests of one salt share what is cached.
    fn options(&self, turn: usize) -> SessionOptions {
        let alone = 1 + (self.number * self.script.turns + turn) as u64;
        SessionOptions { salt: if self.way == Way::Cold { alone } else { 0 }, ..SessionOptions::default() }
    }

    /// Writes a turn and says when its first token came.
    async fn write(&self, session: &mut Session) -> anyhow::Result<Instant> {
        let sampling = SamplingParams { seed: self.number as u64, ..SamplingParams::default() };
        let generate = Generate { sampling, max_tokens: self.script.written, ignore_eos: true, ..Generate::default() };
        let mut turn = session.generate(generate).await?;
        let mut first = None;
        while let Some(step) = turn.next().await {
            step?;
            first.get_or_insert_with(Instant::now);
        }
        first.context("no token came")
    }

    /// Searches and gives an observation of the wanted length, made of what was found.
    async fn search(&mut self, turn: usize) -> anyhow::Result<Vec<u32>> {
        let (source, observed) = (self.source.clone(), self.script.observed);
        match source {
            Source::Wait(time) => {
                tokio::time::sleep(time).await;
                Ok((0..observed).map(|_| self.random.random_range(0..self.vocab)).collect())
            }
            Source::Index(search, mode, questions) => {
                let question = &questions[(self.number * self.script.turns + turn) % questions.len()];
                let evidence = search.search(mode.query(question, 3).into()).await?;
                let text: Vec<u8> = evidence.hits.iter().flat_map(|hit| hit.passage.text.bytes()).collect();
                // A shape has no tokenizer: every byte stands for a token.
                let bytes = text.iter().chain(std::iter::once(&b'.')).cycle();
                Ok(bytes.take(observed).map(|byte| u32::from(*byte) % self.vocab).collect())
            }
        }
    }
}
