//! Tokens per second through the engine, including scheduling, sampling and delivery.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use futures::future::join_all;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use waymark_engine::{Engine, Generate, Origin, Session, SessionOptions};
use waymark_models::sampler::SamplingParams;

use super::gaps::{DecodeGaps, GapSum};
use super::report::Rate;
use super::shape::{Ceilings, ModelShape};

/// Parameters of a rate measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateSetting {
    /// Prompt tokens per sequence.
    pub(super) prompt: usize,
    /// Tokens decoded per sequence.
    pub(super) tokens: usize,
    /// Sampling of the decoded tokens.
    pub(super) sampling: RateSampling,
    /// Number of measurements. The best one counts, since disturbances only slow a GPU down.
    pub(super) rounds: usize,
    /// If `true`, the engine replays CUDA graphs in decode steps. This field only labels the report; it does not
    /// configure the engine.
    pub(super) graphs: bool,
}

/// Kind of sampling in a rate measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RateSampling {
    /// The most probable token.
    #[default]
    Greedy,
    /// Temperature 0.8 and top-p 0.95. Random weights give nearly flat distributions, so most of the vocabulary
    /// remains: the most expensive case.
    TopP,
}

impl RateSampling {
    /// Returns the name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::TopP => "top-p",
        }
    }

    fn params(self, seed: u64) -> SamplingParams {
        match self {
            Self::Greedy => SamplingParams::greedy(),
            Self::TopP => SamplingParams { temperature: 0.8, top_p: 0.95, seed, ..SamplingParams::default() },
        }
    }
}

/// Measures the decode rate of `sequences` sequences while all of them decode.
pub(super) async fn decode(
    engine: &Engine,
    shape: &ModelShape,
    sequences: usize,
    setting: RateSetting,
    best: Option<Ceilings>,
) -> anyhow::Result<Rate> {
    let mut rate = 0.0_f64;
    let mut gaps = GapSum::default();
    for round in 0..setting.rounds {
        let run = run(engine, shape, sequences, setting, round as u64).await?;
        rate = rate.max(concurrent_rate(&run.tokens));
        gaps += run.gaps;
    }
    // On average half of the decoded tokens are in the context.
    let context = setting.prompt + setting.tokens / 2;
    let floor = best.map(|best| shape.decode_floor(sequences, context, best) * rate / sequences as f64);
    Ok(Rate { gap: gaps.mean(), ..line(shape, sequences, setting, rate, floor) })
}

/// Measures the prefill rate of `sequences` prompts, from the first request until all have their first token.
pub(super) async fn prefill(
    engine: &Engine,
    shape: &ModelShape,
    sequences: usize,
    setting: RateSetting,
    best: Option<Ceilings>,
) -> anyhow::Result<Rate> {
    let setting = RateSetting { tokens: 1, sampling: RateSampling::Greedy, ..setting };
    let mut seconds = f64::INFINITY;
    let before = GapSum::of(engine);
    for round in 0..setting.rounds {
        let SequenceRun { start, tokens, .. } = run(engine, shape, sequences, setting, round as u64).await?;
        let end = tokens.iter().flatten().max().context("no sequence produced a token")?;
        seconds = seconds.min((*end - start).as_secs_f64());
    }
    let rate = (sequences * setting.prompt) as f64 / seconds;
    let floor = best.map(|best| shape.prefill_floor(sequences, setting.prompt, best) / seconds);
    Ok(Rate { gap: GapSum::of(engine).since(before).mean(), ..line(shape, sequences, setting, rate, floor) })
}

fn line(shape: &ModelShape, sequences: usize, setting: RateSetting, rate: f64, of_floor: Option<f64>) -> Rate {
    let RateSetting { prompt, tokens, sampling, graphs, .. } = setting;
    Rate {
        shape: shape.name.clone(),
        sequences,
        prompt,
        tokens,
        sampling,
        graphs,
        tokens_per_second: rate,
        of_floor,
        gap: None,
    }
}

/// Returns the tokens per second while all sequences decode: from the last first token to the first last token, which
/// excludes steps that mix with prefill or have fewer sequences. When the sequences hardly overlap, as in very short
/// runs, the interval ends with the very last token.
fn concurrent_rate(tokens: &[Vec<Instant>]) -> f64 {
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

/// One run of a number of sequences.
struct SequenceRun {
    start: Instant,
    /// Times of the tokens of each sequence.
    tokens: Vec<Vec<Instant>>,
    /// Gaps while all sequences decoded.
    gaps: GapSum,
}

/// Starts all sequences at once with different prompts, so no prefix is shared.
async fn run(
    engine: &Engine,
    shape: &ModelShape,
    sequences: usize,
    setting: RateSetting,
    seed: u64,
) -> anyhow::Result<SequenceRun> {
    // Each combination of round, prompt length and number of sequences has its own seed, so no prompt is a prefix
    // of another. The agentic load uses other seeds.
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
    let gaps = Arc::new(DecodeGaps::new(engine, sequences));
    let params = |number| setting.sampling.params(number);
    let running: Vec<_> = (0..)
        .zip(sessions)
        .map(|(number, session)| tokio::spawn(token_times(session, params(number), setting.tokens, Arc::clone(&gaps))))
        .collect();
    let mut tokens = Vec::new();
    // Wait for all before returning the first error, so the next measurement has the engine to itself.
    for sequence in join_all(running).await {
        tokens.push(sequence??);
    }
    Ok(SequenceRun { start, tokens, gaps: gaps.total() })
}

/// Decodes `tokens` tokens and returns the time of each.
async fn token_times(
    mut session: Session,
    sampling: SamplingParams,
    tokens: usize,
    gaps: Arc<DecodeGaps>,
) -> anyhow::Result<Vec<Instant>> {
    let generate = Generate { sampling, max_tokens: tokens, ignore_eos: true, ..Generate::default() };
    let mut turn = session.generate(generate).await?;
    let mut came = Vec::with_capacity(tokens);
    while let Some(step) = turn.next().await {
        step?;
        came.push(Instant::now());
        if came.len() == 1 {
            gaps.begin_sequence();
        }
    }
    gaps.end_sequence();
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
        // Two sequences, one step per millisecond; one starts two steps earlier, during the other's prefill.
        let early = at(&[1, 11, 20, 21, 22, 23, 24, 25, 26, 27]);
        let late = at(&[20, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
        assert!((concurrent_rate(&[early, late]) - 2000.0).abs() < 1e-6);
        // One after the other: the rate over the whole interval.
        assert!((concurrent_rate(&[at(&[1, 2, 3, 4]), at(&[5, 6, 7, 9])]) - 750.0).abs() < 1e-6);
        assert_eq!(concurrent_rate(&[]), 0.0);
    }
}
