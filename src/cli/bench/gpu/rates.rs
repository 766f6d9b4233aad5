//! Tokens per second through the engine: scheduler, sampling and delivery included.

use std::time::Instant;

use anyhow::Context;
use futures::future::join_all;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use waymark_models::sampler::SamplingParams;

use super::report::Rate;
use super::shape::{Best, Shape};
use crate::engine::{Engine, Generate, HistogramSnapshot, Origin, Session, SessionOptions};

/// What is measured at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    /// Prompt tokens per sequence.
    pub(super) prompt: usize,
    /// Tokens decoded per sequence.
    pub(super) tokens: usize,
    /// How often; the best counts, since nothing makes a card faster by chance.
    pub(super) rounds: usize,
    /// Whether decode steps are replayed, for the record.
    pub(super) graphs: bool,
}

/// The decode rate of `sequences`, while all of them decode.
pub(super) async fn decode(
    engine: &Engine,
    shape: &Shape,
    sequences: usize,
    setting: Setting,
    best: Option<Best>,
) -> anyhow::Result<Rate> {
    let (mut rate, gaps) = (0.0_f64, Gaps::of(engine));
    for round in 0..setting.rounds {
        let (_, tokens) = run(engine, shape, sequences, setting, round as u64).await?;
        rate = rate.max(together(&tokens));
    }
    // On average half of what is decoded is there already.
    let context = setting.prompt + setting.tokens / 2;
    let floor = best.map(|best| shape.decode_floor(sequences, context, best) * rate / sequences as f64);
    Ok(Rate { gap: gaps.mean(engine), ..line(shape, sequences, setting, rate, floor) })
}

/// The prefill rate of `sequences` prompts: from the first request to the moment all have their first token.
pub(super) async fn prefill(
    engine: &Engine,
    shape: &Shape,
    sequences: usize,
    setting: Setting,
    best: Option<Best>,
) -> anyhow::Result<Rate> {
    let setting = Setting { tokens: 1, ..setting };
    let (mut seconds, gaps) = (f64::INFINITY, Gaps::of(engine));
    for round in 0..setting.rounds {
        let (start, tokens) = run(engine, shape, sequences, setting, round as u64).await?;
        let end = tokens.iter().flatten().max().context("no token came")?;
        seconds = seconds.min((*end - start).as_secs_f64());
    }
    let rate = (sequences * setting.prompt) as f64 / seconds;
    let floor = best.map(|best| shape.prefill_floor(sequences, setting.prompt, best) / seconds);
    Ok(Rate { gap: gaps.mean(engine), ..line(shape, sequences, setting, rate, floor) })
}

/// The time between passes, from a moment on.
struct Gaps(HistogramSnapshot);

impl Gaps {
    fn of(engine: &Engine) -> Self {
        Self(engine.counters().gap_seconds.snapshot())
    }

    /// Milliseconds in the mean since then, if there was one.
    fn mean(&self, engine: &Engine) -> Option<f64> {
        let Self(now) = Self::of(engine);
        let count = now.count() - self.0.count();
        (count > 0).then(|| (now.sum - self.0.sum) * 1e3 / count as f64)
    }
}

fn line(shape: &Shape, sequences: usize, setting: Setting, rate: f64, of_floor: Option<f64>) -> Rate {
    let Setting { prompt, tokens, graphs, .. } = setting;
    Rate { shape: shape.name.clone(), sequences, prompt, tokens, graphs, tokens_per_second: rate, of_floor, gap: None }
}

/// Tokens per second while all sequences decode: from the moment the last has its first token to the moment the first has
/// its last, so that neither what is decoded beside prefill counts nor steps of fewer sequences. Where they hardly overlap,
/// as in very short runs, from the last first token to the very end.
fn together(tokens: &[Vec<Instant>]) -> f64 {
    let all = tokens.iter().map(Vec::len).sum::<usize>();
    let from = tokens.iter().filter_map(|own| own.first()).max();
    let until = tokens.iter().filter_map(|own| own.last()).min();
    let end = tokens.iter().flatten().max();
    let (Some(from), Some(until), Some(end)) = (from, until, end) else { return 0.0 };
    let rate = |until: &Instant| {
        let count = tokens.iter().flatten().filter(|at| *at > from && *at <= until).count();
        (count, count as f64 / until.saturating_duration_since(*from).as_secs_f64().max(1e-9))
    };
    let (count, value) = rate(until);
    if 2 * count >= all { value } else { rate(end).1 }
}

/// Begins all sequences at once, each with a prompt of its own, so that no prefix is shared. Gives the beginning, and when
/// each token came.
async fn run(
    engine: &Engine,
    shape: &Shape,
    sequences: usize,
    setting: Setting,
    seed: u64,
) -> anyhow::Result<(Instant, Vec<Vec<Instant>>)> {
    // Another seed for each kind of prompt, of which one would be the beginning of another; and none of the agentic load's.
    let mut random = ChaCha8Rng::seed_from_u64(1 << 63 | seed << 48 | (setting.prompt as u64) << 24 | sequences as u64);
    let vocab = shape.config.vocab as u32;
    let sessions: Vec<Session> = (0..sequences)
        .map(|_| {
            let prompt: Vec<u32> = (0..setting.prompt).map(|_| random.random_range(0..vocab)).collect();
            let mut session = engine.session(SessionOptions::default());
            session.append(&prompt, Origin::Prompt, false);
            session
        })
        .collect();
    let start = Instant::now();
    let running: Vec<_> = sessions.into_iter().map(|session| tokio::spawn(times(session, setting.tokens))).collect();
    let mut tokens = Vec::new();
    // All have ended before the first failure is told: what is measured next has the engine to itself.
    for sequence in join_all(running).await {
        tokens.push(sequence??);
    }
    Ok((start, tokens))
}

/// Decodes `tokens` tokens and says when each of them came.
async fn times(mut session: Session, tokens: usize) -> anyhow::Result<Vec<Instant>> {
    let sampling = SamplingParams::greedy();
    let generate = Generate { sampling, max_tokens: tokens, ignore_eos: true, ..Generate::default() };
    let mut turn = session.generate(generate).await?;
    let mut came = Vec::with_capacity(tokens);
    while let Some(step) = turn.next().await {
        step?;
        came.push(Instant::now());
    }
    Ok(came)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_is_decoded_together_counts() {
        let begun = Instant::now();
        let at = |milliseconds: &[u64]| -> Vec<Instant> {
            milliseconds.iter().map(|at| begun + Duration::from_millis(*at)).collect()
        };
        // Two sequences, a step a millisecond: one begins two steps before the other, during its prefill.
        let early = at(&[1, 11, 20, 21, 22, 23, 24, 25, 26, 27]);
        let late = at(&[20, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
        assert!((together(&[early, late]) - 2000.0).abs() < 1e-6);
        // One after the other: what came in all that time.
        assert!((together(&[at(&[1, 2, 3, 4]), at(&[5, 6, 7, 9])]) - 750.0).abs() < 1e-6);
        assert_eq!(together(&[]), 0.0);
    }
}
