//! What can only be asked of a card.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waymark_models::cuda::kernel::layout::HEAD_DIMS;
use waymark_models::cuda::plan::Limits;
use waymark_models::cuda::{Card, CudaDecoder, CudaError, CudaOptions, Source};
use waymark_models::decoder::Decoder;
use waymark_models::gradient::Learner;
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;

use super::compare::{Bounds, alone, follow, graphs, prompts};
use super::learn;
use super::report::{Agreement, Kernels, Learning, Ready};
use super::shape::{Best, Shape};
use crate::engine::{CpuBackend, CudaBackend, KvBudget};

/// Rows of a comparison's steps, and how far they go.
const LIMITS: Limits = Limits { rows: 64, tokens: 8192, context: 1024 };

/// Decode steps in which a row by itself is compared with the same among others.
const DECODED: usize = 4;

/// What the mean difference of log-probabilities may be between `bf16` and `f32`: rounding gives a few thousandths.
const HALF: f64 = 0.05;

/// Compares every kernel with its reference, for every width of heads.
pub(super) fn kernels(ordinal: usize, seed: u64) -> anyhow::Result<Kernels> {
    let mut kernels = Kernels { compared: 0, worst: 0.0, wrong: Vec::new() };
    for dim in HEAD_DIMS {
        for finding in Card::open(ordinal, dim)?.check(dim, seed)? {
            kernels.compared += 1;
            if finding.holds() {
                kernels.worst = kernels.worst.max(finding.error / finding.bound);
            } else {
                let (kernel, case) = (finding.kernel.name(), &finding.case);
                kernels.wrong.push(format!(
                    "{kernel}, {case}, heads of {dim}: {:.3e}, bound {:.0e}",
                    finding.error, finding.bound
                ));
            }
        }
    }
    Ok(kernels)
}

/// The best the card can do, and what it is.
pub(super) fn best(ordinal: usize) -> Result<(Best, String), CudaError> {
    let card = Card::open(ordinal, HEAD_DIMS[0])?;
    let ceilings = card.ceilings(5)?;
    let info = card.info();
    let about = format!("{}, {} multiprocessors, driver CUDA {}", info.name, info.processors, info.driver);
    Ok((Best { bandwidth: ceilings.bandwidth, operations: ceilings.operations }, about))
}

/// A backend with random weights in a shape, whose steps may take `limit`.
pub(super) fn backend(
    ordinal: usize,
    shape: &Shape,
    limits: Limits,
    graphs: bool,
    limit: Duration,
    team: Arc<Team>,
) -> Result<(CudaBackend, Ready), CudaError> {
    let begun = Instant::now();
    let options = CudaOptions { ordinal, limits, share: 0.9, blocks: None, graphs, limit };
    let mut decoder = CudaDecoder::load(Source::Random { config: &shape.config, seed: 1 }, &options)?;
    decoder.warm_up()?;
    let plan = *decoder.plan();
    let ready = Ready {
        shape: shape.name.clone(),
        seconds: begun.elapsed().as_secs_f64(),
        kv_bytes_per_token: plan.kv_bytes_per_token(),
        kv_tokens: plan.blocks * waymark_models::BLOCK,
    };
    Ok((CudaBackend::new(decoder, &shape.name, 1, team), ready))
}

/// The card against the processor, batches against single rows, and graphs against single launches, over one checkpoint.
/// A step of the card may take `limit`.
pub(super) fn agreement(
    ordinal: usize,
    weights: &Weights,
    limit: Duration,
    team: Arc<Team>,
) -> anyhow::Result<Vec<Agreement>> {
    let context = LIMITS.context.min(weights.config().context);
    let limits = Limits { context, ..LIMITS };
    let options = CudaOptions { ordinal, limits, share: 0.9, blocks: Some(4096), graphs: true, limit };
    let decoder = CudaDecoder::load(Source::Checkpoint(weights), &options)?;
    let mut card = CudaBackend::new(decoder, "card", 1, Arc::clone(&team));
    let vocab = weights.config().vocab;
    let mut found = Vec::new();
    let decoder = Decoder::load(weights, team)?;
    let mut processor = CpuBackend::new(decoder, "cpu", 1, KvBudget::Blocks(1024))?;
    let texts = prompts(50, 24, vocab, 7);
    found.push(follow("processor and card, 50 prompts", &mut processor, &mut card, &texts, 32, HALF)?);
    found.push(alone(&mut card, &prompts(64, 40, vocab, 8), DECODED, HALF)?);
    let edges = card.decoder().buckets().sizes().to_vec();
    let bounds = Bounds { rows: LIMITS.rows, tokens: LIMITS.tokens, context, vocab };
    found.push(graphs(&mut card, &edges, bounds, |card, on| card.decoder().set_graphs(on))?);
    Ok(found)
}

/// One step of learning an adapter, on the card and on the processor.
pub(super) fn learning(ordinal: usize, name: &str, weights: &Weights, team: Arc<Team>) -> anyhow::Result<Learning> {
    let card = Learner::load_on_card(weights, ordinal, &learn::tune(), None)?;
    let processor = Learner::load(weights, team, &learn::tune())?;
    Ok(learn::compare(name, card, processor)?)
}
