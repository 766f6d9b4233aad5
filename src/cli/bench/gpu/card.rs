//! What can only be asked of a card.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waymark_models::cuda::kernel::layout::HEAD_DIMS;
use waymark_models::cuda::plan::Limits;
use waymark_models::cuda::profile::Alike;
use waymark_models::cuda::{Card, CudaDecoder, CudaError, CudaOptions, CudaProfiler, Source};
use waymark_models::decoder::Decoder;
use waymark_models::gradient::Learner;
use waymark_models::kernel::Team;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, BLOCK};

use super::compare::adapter;
use super::compare::crowd::alone;
use super::compare::prompts;
use super::compare::recording::{Bounds, graphs};
use super::compare::text::{Side, follow};
use super::ledger::guarded;
use super::report::{Agreement, GREEDY, Kernels, Learning, Ready};
use super::shape::{Best, Shape};
use super::{folder, learn};
use crate::engine::{BackendError, CpuBackend, CudaBackend, KvBudget};

/// Rows of a comparison's steps, and how far they go.
const LIMITS: Limits = Limits { rows: 64, tokens: 8192, context: 1024 };

/// Rows of the largest batch, over a small decoder: as many as decode rates are measured of by default.
const MOST: usize = 256;

/// Decode steps in which a row by itself is compared with the same among others.
const DECODED: usize = 4;

/// What the mean difference of log-probabilities may be between `bf16` and `f32`: rounding gives a few thousandths.
const HALF: f64 = 0.05;

/// Compares every kernel with its reference, for heads of width `dim`. What was compared before one fails is in `kernels`.
pub(super) fn kernels(ordinal: usize, dim: usize, seed: u64, kernels: &mut Kernels) -> anyhow::Result<()> {
    let mut found = Vec::new();
    let checked = guarded(|| {
        Card::open(ordinal, dim)?.check(dim, seed, &mut found)?;
        Ok(())
    });
    for finding in found {
        kernels.compared += 1;
        if finding.holds() {
            kernels.worst = kernels.worst.max(finding.error / finding.bound);
        } else {
            let (kernel, case, error, bound) = (finding.kernel.name(), &finding.case, finding.error, finding.bound);
            kernels.wrong.push(format!("{kernel}, {case}, heads of {dim}: {error:.3e}, bound {bound:.0e}"));
        }
    }
    checked
}

/// What the card is, without computing on it.
pub(super) fn about(ordinal: usize) -> Result<String, CudaError> {
    let (info, _) = Card::look(ordinal)?;
    Ok(format!("{}, {} multiprocessors, driver CUDA {}", info.name, info.processors, info.driver))
}

/// The best it can do.
pub(super) fn ceilings(ordinal: usize) -> Result<Best, CudaError> {
    let ceilings = Card::open(ordinal, HEAD_DIMS[0])?.ceilings(5)?;
    Ok(Best { bandwidth: ceilings.bandwidth, operations: ceilings.operations })
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
        kv_tokens: plan.blocks * BLOCK,
    };
    Ok((CudaBackend::new(decoder, &shape.name, 1, team), ready))
}

/// A decoder with random weights in a shape, some steps of which are to be timed; a step may take `limit`.
pub(super) fn profiler(
    ordinal: usize,
    shape: &Shape,
    limits: Limits,
    steps: &[Alike],
    limit: Duration,
) -> Result<CudaProfiler, CudaError> {
    let blocks = steps.iter().map(Alike::blocks).max();
    let options = CudaOptions { ordinal, limits, share: 0.9, blocks, graphs: false, limit };
    CudaProfiler::load(Source::Random { config: &shape.config, seed: 1 }, &options)
}

/// The card against the processor, with adapters and without, batches against single rows, and graphs against single
/// launches, over one checkpoint. A step of the card may take `limit`. What was compared before one fails is in `found`.
pub(super) fn agreement(
    ordinal: usize,
    weights: &Weights,
    limit: Duration,
    team: &Arc<Team>,
    found: &mut Vec<Agreement>,
) -> anyhow::Result<()> {
    let context = LIMITS.context.min(weights.config().context);
    let limits = Limits { context, ..LIMITS };
    let options = CudaOptions { ordinal, limits, share: 0.9, blocks: Some(4096), graphs: true, limit };
    let decoder = CudaDecoder::load(Source::Checkpoint(weights), &options)?;
    let mut card = CudaBackend::new(decoder, "card", 1, Arc::clone(team));
    let vocab = weights.config().vocab;
    let decoder = Decoder::load(weights, Arc::clone(team))?;
    let mut processor = CpuBackend::new(decoder, "cpu", 1, KvBudget::Blocks(1024))?;
    let texts = prompts(50, 24, vocab, 7);
    found.push(follow(GREEDY, Side::plain(&mut processor), Side::plain(&mut card), &texts, 32, HALF)?);
    found.push(alone(&mut card, &prompts(64, 40, vocab, 8), DECODED, HALF)?);
    found.push(recorded(&mut card, &[])?);
    let texts = prompts(6, 24, vocab, 10);
    let mixed = folder::with(|dir| {
        let adapters = adapter::save(weights, team, dir)?;
        adapter::mixed(&mut processor, &mut card, &adapters, &texts, 16, HALF)
    });
    found.push(mixed?);
    Ok(())
}

/// Batches of up to [`MOST`] rows against single rows, and their graphs, recorded as a server records them, against single
/// launches; with adapters as well. A step of the card may take `limit`. What was compared before one fails is in `found`.
pub(super) fn crowds(
    ordinal: usize,
    weights: &Weights,
    limit: Duration,
    team: &Arc<Team>,
    found: &mut Vec<Agreement>,
) -> anyhow::Result<()> {
    let limits = Limits { rows: MOST, ..LIMITS };
    let blocks = Some(limits.rows * limits.context.div_ceil(BLOCK));
    let options = CudaOptions { ordinal, limits, share: 0.9, blocks, graphs: true, limit };
    let mut decoder = CudaDecoder::load(Source::Checkpoint(weights), &options)?;
    decoder.warm_up()?;
    let mut card = CudaBackend::new(decoder, "card", 1, Arc::clone(team));
    // All prompts together are one step: at most 30 tokens each.
    found.push(alone(&mut card, &prompts(MOST, 10, weights.config().vocab, 11), DECODED, HALF)?);
    found.push(recorded(&mut card, &[])?);
    let slots = folder::with(|dir| Ok(adapter::load(&mut card, &adapter::save(weights, team, dir)?)?))?;
    found.push(recorded(&mut card, &slots)?);
    Ok(())
}

/// Recorded steps against launched ones at every bucket's edge, of rows that have `adapters` in turn.
fn recorded(card: &mut CudaBackend, adapters: &[Option<AdapterSlot>]) -> Result<Agreement, BackendError> {
    let decoder = card.decoder();
    let edges = decoder.buckets().sizes().to_vec();
    let Limits { rows, tokens, context } = *decoder.limits();
    let bounds = Bounds { rows, tokens, context, vocab: decoder.config().vocab };
    graphs(card, &edges, bounds, adapters, |card, on| card.decoder().set_graphs(on))
}

/// One step of learning an adapter, on the card and on the processor.
pub(super) fn learning(ordinal: usize, name: &str, weights: &Weights, team: Arc<Team>) -> anyhow::Result<Learning> {
    let card = Learner::load_on_card(weights, ordinal, &learn::tune(), None)?;
    let processor = Learner::load(weights, team, &learn::tune())?;
    Ok(learn::compare(name, card, processor)?)
}
