//! LoRA training on a GPU: the same passes as on the CPU, with the base model in `bf16`, and the adapter, the residual
//! stream and all weight gradients in `f32`.
//!
//! A pass keeps the input of each layer; the backward pass recomputes each layer except the last from its input. The
//! base model gets no gradients. Activation gradients are `bf16` where they enter a matrix multiplication with the base
//! model. The adapter's values and gradients are copied between host and GPU, and the optimizer runs on the host.
//!
//! Differences from the CPU: a prefix shared by several sequences is computed once per sequence (`pass_rows`), and
//! every layer except the last recomputes its activations. Distillation from a teacher ([`Objective::distillation`])
//! and hidden states ([`Learner::states`]) are not supported and return an error.
//!
//! The memory requirement is known before anything is allocated ([`TrainingMemory`]). If the maximum pass size is
//! given, its memory is allocated at the start.
//!
//! This module is always compiled, and tested on the kernel emulator; the GPU is accessed through [`Driver`].

mod adapter;
mod backward;
#[cfg(feature = "cuda")]
mod gpu;
mod head;
mod need;
mod pass;
mod pass_layout;
mod pass_rows;
mod projection;
#[cfg(test)]
mod test;

use std::fmt;

pub use need::{EngineMemory, LearningShortage, PassLimits, RolloutLoad, TrainingMemory, usable};

use super::CudaError;
use super::driver::Driver;
use super::plan::{self, StepLimits, WeightLayout, gib};
use super::source::{WeightLoader, WeightSource};
use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::gradient::{self, Compute, Learner, Likeliest, Lora, Objective, Pack, Score, ScoredModel, Tune};
use crate::weights::Weights;
use adapter::LearnerAdapter;
use pass::LearnerPass;
use pass_layout::{PassLayout, PassSize};
use pass_rows::PassRows;

/// Maximum number of tokens of a pass: the y dimension of a grid, which counts tokens, is limited to this.
const MAX_PASS_TOKENS: usize = 65_535;

/// Error for distillation from a teacher.
const NO_TEACHER: &str = "distillation from a teacher's most probable tokens is not supported on a GPU: train on the CPU \
    (--device cpu)";

/// Error for requests of hidden states.
const NO_STATES: &str = "hidden states, from which a ranker scores branches, are not supported on a GPU: train on the CPU \
    (--device cpu)";

/// Creates a learner whose passes run on `driver`. `tokens` is the maximum number of tokens of a pass, counted as in
/// [`PassLimits`]. If it is given, the memory of such a pass is allocated immediately; otherwise, and for longer
/// passes, it is allocated when needed.
///
/// # Errors
/// [`CudaError::Model`] for full fine-tuning, a missing tensor, a shape that no kernel supports, or a pass that does
/// not fit; [`CudaError::Call`] when memory is too small.
pub fn learner<D: Driver + Send + 'static>(
    driver: D,
    weights: &Weights,
    tune: &Tune,
    tokens: Option<usize>,
) -> Result<Learner, CudaError> {
    let config = weights.config().clone();
    let lora = check(&config, tune)?;
    let (table, pairs) = gradient::adapter(&config, lora)?;
    driver.bind()?;
    let places = WeightLayout::new(&config, config.context);
    let region = driver.allocate(places.bytes)?;
    WeightLoader::new(WeightSource::Checkpoint(weights), &driver, &region)?.load(&places, config.context)?;
    let adapter = LearnerAdapter::new(lora, pairs, table.values.len());
    let adapter_region = driver.allocate(adapter.bytes)?;
    let mut compute = DeviceLearner {
        config: config.clone(),
        places,
        pass_memory: None,
        adapter_region,
        weights: region,
        adapter,
        stale: None,
        limit: None,
        driver,
    };
    compute.take(&table.values);
    if let Some(tokens) = tokens {
        let size = PassSize::upper_bound(&config, tokens, compute.adapter.ranks());
        compute
            .allocate_pass_memory(PassLayout::new(&config, &size).bytes, || format!("a pass over {tokens} tokens"))?;
    }
    Ok(Learner::over(Box::new(compute), config, tune, table))
}

/// Checks that this kind of training and the configuration are supported.
fn check<'a>(config: &DecoderConfig, tune: &'a Tune) -> Result<&'a Lora, ModelError> {
    plan::check(config, &StepLimits { rows: 1, tokens: 1, context: config.context })?;
    match tune {
        Tune::Lora(lora) => Ok(lora),
        Tune::Full => Err(ModelError::Input(
            "full fine-tuning is not supported on a GPU: give the recipe an adapter, or train on the CPU".to_owned(),
        )),
    }
}

/// A decoder's weights, an adapter, and the memory of a pass, on a device.
struct DeviceLearner<D: Driver> {
    config: DecoderConfig,
    places: WeightLayout,
    // Fields drop in order: memory before the driver.
    /// Memory of a pass with its size in bytes; grows when a larger pass comes. `None` before the first pass.
    pass_memory: Option<(D::Region, usize)>,
    adapter_region: D::Region,
    weights: D::Region,
    adapter: LearnerAdapter,
    /// Adapter values that are not yet on the device. `None` when the device is up to date.
    stale: Option<Vec<f32>>,
    limit: Option<usize>,
    driver: D,
}

impl<D: Driver> DeviceLearner<D> {
    /// Prepares a pass over `pack`: its rows, its memory and current adapter values.
    fn prepare(&mut self, pack: &Pack, back: bool) -> Result<(PassRows, PassLayout), CudaError> {
        self.driver.bind()?;
        let rows = PassRows::new(pack, &self.config);
        let size = PassSize::new(&rows, self.adapter.ranks(), back);
        if size.tokens > MAX_PASS_TOKENS {
            let tokens = size.tokens;
            return Err(invalid_input(format!(
                "a pass over {tokens} tokens, shared prefixes counted once per sequence: at most {MAX_PASS_TOKENS} on a GPU; \
                 make packs smaller"
            )));
        }
        let buffers = PassLayout::new(&self.config, &size);
        self.reserve(&buffers, &size)?;
        if let Some(values) = &self.stale {
            self.driver.upload(values, self.driver.slice(&self.adapter_region, self.adapter.values))?;
            self.stale = None;
        }
        Ok((rows, buffers))
    }

    /// Ensures that there is memory for a pass.
    fn reserve(&mut self, buffers: &PassLayout, size: &PassSize) -> Result<(), CudaError> {
        let need = self.resident_bytes() + buffers.bytes;
        let asked = || format!("a pass over {} tokens with {} targets", size.tokens, size.targets);
        if let Some(limit) = self.limit.filter(|limit| need > *limit) {
            let need = gib(need);
            let limit = gib(limit);
            return Err(invalid_input(format!(
                "{} needs {need} of GPU memory, the limit is {limit}; raise the limit or make packs smaller",
                asked()
            )));
        }
        if self.pass_memory.as_ref().is_some_and(|(_, bytes)| *bytes >= buffers.bytes) {
            return Ok(());
        }
        self.allocate_pass_memory(buffers.bytes, asked)
    }

    /// Allocates memory for passes, replacing the previous allocation.
    fn allocate_pass_memory(&mut self, bytes: usize, asked: impl Fn() -> String) -> Result<(), CudaError> {
        // Free the previous allocation first, so both need not fit at once.
        self.pass_memory = None;
        let free = self.driver.free_memory()?;
        if bytes > free {
            let need = gib(bytes);
            let free = gib(free);
            return Err(invalid_input(format!(
                "{} needs {need} of GPU memory in addition to weights and adapter, {free} are free; make packs smaller",
                asked()
            )));
        }
        self.pass_memory = Some((self.driver.allocate(bytes)?, bytes));
        Ok(())
    }

    /// Returns the bytes of weights and adapter, which are held independently of any pass.
    fn resident_bytes(&self) -> usize {
        self.places.bytes + self.adapter.bytes
    }

    fn pass<'a>(
        &'a self,
        rows: &'a PassRows,
        buffers: &'a PassLayout,
        adapted: bool,
    ) -> Result<LearnerPass<'a, D>, CudaError> {
        let missing =
            || CudaError::Call { action: "cannot begin a pass", reason: "its memory is not allocated".to_owned() };
        let (region, _) = self.pass_memory.as_ref().ok_or_else(missing)?;
        Ok(LearnerPass {
            driver: &self.driver,
            config: &self.config,
            weights: (&self.weights, &self.places),
            adapter: adapted.then_some((&self.adapter, &self.adapter_region)),
            region,
            buffers,
            rows,
            tokens: rows.tokens.len(),
        })
    }
}

impl<D: Driver + Send> Compute for DeviceLearner<D> {
    fn take(&mut self, values: &[f32]) {
        let stale = self.stale.get_or_insert_default();
        stale.clear();
        stale.extend_from_slice(values);
    }

    fn score(&mut self, pack: &Pack, model: ScoredModel) -> Result<Vec<Score>, ModelError> {
        let (rows, buffers) = self.prepare(pack, false)?;
        let pass = self.pass(&rows, &buffers, model == ScoredModel::Adapted)?;
        pass.begin()?;
        pass.forward(false)?;
        Ok(pass.score()?)
    }

    fn likeliest(&mut self, _: &Pack, _: usize, _: ScoredModel) -> Result<Vec<Likeliest>, ModelError> {
        Err(ModelError::Input(NO_TEACHER.to_owned()))
    }

    fn states(&mut self, _: &Pack, _: ScoredModel) -> Result<Vec<Vec<f32>>, ModelError> {
        Err(ModelError::Input(NO_STATES.to_owned()))
    }

    fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective, gradients: &mut [f32]) -> Result<(), ModelError> {
        let (rows, buffers) = self.prepare(pack, true)?;
        let adapter_region = self.driver.slice(&self.adapter_region, self.adapter.gradients);
        self.driver.clear(adapter_region)?;
        let pass = self.pass(&rows, &buffers, true)?;
        pass.begin()?;
        pass.forward(true)?;
        pass.loss_backward(objective)?;
        pass.backward()?;
        let mut found = vec![0.0; gradients.len()];
        self.driver.download(adapter_region, &mut found)?;
        gradients.iter_mut().zip(found).for_each(|(gradient, found)| *gradient += found);
        Ok(())
    }

    fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    fn on_gpu(&self) -> bool {
        true
    }

    /// Bytes for any sequences with `tokens` tokens in total, each sequence counted in whole blocks.
    fn bytes(&self, tokens: usize) -> usize {
        let size = PassSize::upper_bound(&self.config, tokens, self.adapter.ranks());
        self.resident_bytes() + PassLayout::new(&self.config, &size).bytes
    }

    fn bytes_of(&self, pack: &Pack) -> usize {
        let size = PassSize::new(&PassRows::new(pack, &self.config), self.adapter.ranks(), true);
        self.resident_bytes() + PassLayout::new(&self.config, &size).bytes
    }
}

impl<D: Driver> fmt::Debug for DeviceLearner<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLearner").field("adapter", &self.adapter.rank).finish_non_exhaustive()
    }
}

fn invalid_input(reason: String) -> CudaError {
    ModelError::Input(reason).into()
}
