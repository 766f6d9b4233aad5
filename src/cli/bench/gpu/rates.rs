//! Tokens per second through the engine: scheduler, sampling and delivery included.

use std::time::Instant;

use anyhow::Context;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use waymark_models::sampler::SamplingParams;

use super::report::Rate;
use super::shape::{Best, Shape};
use crate::engine::{Engine, Generate, Origin, Session, SessionOptions};

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

/// Decode rates at each number of sequences: from the moment all have their first token to the end.
pub(super) async fn decode(
    engine: &Engine,
    shape: &Shape,
    sequences: &[usize],
    setting: Setting,
    best: Option<Best>,
) -> anyhow::Result<Vec<Rate>> {
    let mut rates = Vec::new();
    for &count in sequences {
        let mut rate = 0.0_f64;
        for round in 0..setting.rounds {
            let (first, last) = run(engine, shape, count, setting, round as u64).await?.1;
            rate = rate.max((count * (setting.tokens - 1)) as f64 / (last - first).as_secs_f64());
        }
        // On average half of what is decoded is there already.
        let context = setting.prompt + setting.tokens / 2;
        let floor = best.map(|best| shape.decode_floor(count, context, best) * rate / count as f64);
        rates.push(line(shape, count, setting, rate, floor));
    }
    Ok(rates)
}

/// The prefill rate of `sequences` prompts: from the first request to the moment all have their first token.
pub(super) async fn prefill(
    engine: &Engine,
    shape: &Shape,
    sequences: usize,
    setting: Setting,
    best: Option<Best>,
) -> anyhow::Result<Rate> {
    let mut seconds = f64::INFINITY;
    for round in 0..setting.rounds {
        let (start, (first, _)) = run(engine, shape, sequences, Setting { tokens: 1, ..setting }, round as u64).await?;
        seconds = seconds.min((first - start).as_secs_f64());
    }
    let rate = (sequences * setting.prompt) as f64 / seconds;
    let floor = best.map(|best| shape.prefill_floor(sequences, setting.prompt, best) / seconds);
    Ok(line(shape, sequences, setting, rate, floor))
}

fn line(shape: &Shape, sequences: usize, setting: Setting, rate: f64, of_floor: Option<f64>) -> Rate {
    let Setting { prompt, graphs, .. } = setting;
    Rate { shape: shape.name.clone(), sequences, prompt, graphs, tokens_per_second: rate, of_floor }
}

/// Begins all sequences at once, each with a prompt of its own, so that no prefix is shared. Gives the beginning, and when
/// the last of them had its first and its last token.
async fn run(
    engine: &Engine,
    shape: &Shape,
    sequences: usize,
    setting: Setting,
    seed: u64,
) -> anyhow::Result<(Instant, (Instant, Instant))> {
    let mut random = ChaCha8Rng::seed_from_u64(seed << 32 | sequences as u64);
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
    let (mut first, mut last) = (start, start);
    for sequence in running {
        let (own_first, own_last) = sequence.await??;
        (first, last) = (first.max(own_first), last.max(own_last));
    }
    Ok((start, (first, last)))
}

/// Decodes `tokens` tokens and says when the first and the last of them came.
async fn times(mut session: Session, tokens: usize) -> anyhow::Result<(Instant, Instant)> {
    let sampling = SamplingParams::greedy();
    let generate = Generate { sampling, max_tokens: tokens, ignore_eos: true, ..Generate::default() };
    let mut turn = session.generate(generate).await?;
    let (mut first, mut last) = (None, Instant::now());
    while let Some(step) = turn.next().await {
        step?;
        last = Instant::now();
        first.get_or_insert(last);
    }
    Ok((first.context("no token came")?, last))
}
