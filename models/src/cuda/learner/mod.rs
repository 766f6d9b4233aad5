//! Learning an adapter on a card: the same passes as on the processor, with the base model in `bf16` and the adapter, its
//! products, the residual stream and all gradients of weights in `f32`.
//!
//! A pass keeps each layer's input; on the way back a layer is computed again from it. The base model gets no gradients.
//! Gradients of activations are `bf16` where a product of the base model reads them. Values and gradients of the adapter
//! are copied to the card and from it, and the optimizer stays on the host.
//!
//! Different from the processor: a prefix that sequences share is computed once for each of them (`rows`), no layer
//! keeps its activations, no target is drawn to what a teacher says ([`Objective::pull`]), and no states are given
//! ([`Learner::states`]): that is refused.
//!
//! What all of it takes is known before any of it is taken ([`Need`]), and the memory of the longest pass is taken at the
//! beginning where that is said.
//!
//! What is here is always compiled, and tested on the emulator of kernels; a card stands behind [`Driver`].

mod adapter;
mod backward;
#[cfg(feature = "cuda")]
mod card;
mod head;
mod need;
mod pass;
mod room;
mod rows;
mod site;
#[cfg(test)]
mod test;

use std::fmt;

pub use need::{Need, Passes, Rollouts, Serving, Shortage, usable};

use super::CudaError;
use super::driver::Driver;
use super::plan::{self, Limits, WeightPlaces, gib};
use super::source::{Loader, Source};
use crate::ModelError;
use crate::decoder::DecoderConfig;
use crate::gradient::{self, Compute, Learner, Likeliest, Lora, Objective, Pack, Score, Tune};
use crate::weights::Weights;
use adapter::Adapter;
use pass::Pass;
use room::{Room, Size};
use rows::Rows;

/// The most tokens of a pass: a grid's second side, which counts them, goes no further.
const LARGEST_PASS: usize = 65_535;

/// Why nothing is drawn to what a teacher says.
const UNTAUGHT: &str = "a card has no kernel for the most probable tokens of a teacher, nor for what draws a policy to them: \
    learn on the processor (--device cpu)";

/// Why it says no states.
const STATELESS: &str = "a card does not give the states that targets are predicted from, by which a ranker tells branches: \
    learn on the processor (--device cpu)";

/// A learner whose passes run on `driver`. Where the most `tokens` of a pass are given, counted as [`Passes`] does, the
/// memory of such a pass is taken at once; otherwise, and of longer ones, when they come.
///
/// # Errors
/// [`CudaError::Model`] when all weights are to be learnt, a tensor is missing, a shape is one no kernel was written for,
/// or the pass does not fit; [`CudaError::Call`] when the card has not the memory.
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
    let places = WeightPlaces::new(&config, config.context);
    let region = driver.take(places.bytes)?;
    Loader::new(Source::Checkpoint(weights), &driver, &region)?.load(&places, config.context)?;
    let adapter = Adapter::new(lora, pairs, table.values.len());
    let learnt = driver.take(adapter.bytes)?;
    let mut card = CardLearner {
        config: config.clone(),
        places,
        work: None,
        learnt,
        weights: region,
        adapter,
        stale: None,
        limit: None,
        driver,
    };
    card.take(&table.values);
    if let Some(tokens) = tokens {
        let size = Size::most(&config, tokens, card.adapter.ranks());
        card.hold(Room::new(&config, &size).bytes, || format!("a pass over {tokens} tokens"))?;
    }
    Ok(Learner::over(Box::new(card), config, tune, table))
}

/// Refuses what is not learnt on a card, and shapes that no kernel was written for.
fn check<'a>(config: &DecoderConfig, tune: &'a Tune) -> Result<&'a Lora, ModelError> {
    plan::check(config, &Limits { rows: 1, tokens: 1, context: config.context })?;
    match tune {
        Tune::Lora(lora) => Ok(lora),
        Tune::Full => Err(ModelError::Input(
            "on a card an adapter is learnt, not all weights: give the recipe one, or learn on the processor"
                .to_owned(),
        )),
    }
}

/// A decoder's weights, an adapter, and the memory of a pass, on a card.
struct CardLearner<D: Driver> {
    config: DecoderConfig,
    places: WeightPlaces,
    // Memory before what it is of.
    /// With its size in bytes. Grows with passes that are larger than what was taken.
    work: Option<(D::Region, usize)>,
    learnt: D::Region,
    weights: D::Region,
    adapter: Adapter,
    /// Values that have changed since the card had them.
    stale: Option<Vec<f32>>,
    limit: Option<usize>,
    driver: D,
}

impl<D: Driver> CardLearner<D> {
    /// Makes everything ready for a pass over `pack`.
    fn ready(&mut self, pack: &Pack, back: bool) -> Result<(Rows, Room), CudaError> {
        self.driver.bind()?;
        let rows = Rows::new(pack, &self.config);
        let size = Size::new(&rows, self.adapter.ranks(), back);
        if size.tokens > LARGEST_PASS {
            let tokens = size.tokens;
            return Err(refused(format!(
                "a pass over {tokens} tokens, prefixes counted for each sequence: on a card at most {LARGEST_PASS}; make \
                 packs smaller"
            )));
        }
        let room = Room::new(&self.config, &size);
        self.reserve(&room, &size)?;
        if let Some(values) = &self.stale {
            self.driver.upload(values, self.driver.span(&self.learnt, self.adapter.values))?;
            self.stale = None;
        }
        Ok((rows, room))
    }

    /// Takes memory for a pass, where what there is does not suffice.
    fn reserve(&mut self, room: &Room, size: &Size) -> Result<(), CudaError> {
        let need = self.resting() + room.bytes;
        let asked = || format!("a pass over {} tokens with {} targets", size.tokens, size.targets);
        if let Some(limit) = self.limit.filter(|limit| need > *limit) {
            let (need, limit) = (gib(need), gib(limit));
            return Err(refused(format!(
                "{} needs {need} of the card's memory, the limit is {limit}; raise the limit or make packs \
                 smaller",
                asked()
            )));
        }
        if self.work.as_ref().is_some_and(|(_, bytes)| *bytes >= room.bytes) {
            return Ok(());
        }
        self.hold(room.bytes, asked)
    }

    /// Takes so many bytes for passes, in place of what there was.
    fn hold(&mut self, bytes: usize, asked: impl Fn() -> String) -> Result<(), CudaError> {
        // What was there goes first.
        self.work = None;
        let free = self.driver.free()?;
        if bytes > free {
            let (need, free) = (gib(bytes), gib(free));
            return Err(refused(format!(
                "{} needs {need} of the card's memory beside weights and adapter, {free} are free; make packs \
                 smaller",
                asked()
            )));
        }
        self.work = Some((self.driver.take(bytes)?, bytes));
        Ok(())
    }

    /// Bytes between passes.
    fn resting(&self) -> usize {
        self.places.bytes + self.adapter.bytes
    }

    fn pass<'a>(&'a self, rows: &'a Rows, room: &'a Room, adapted: bool) -> Result<Pass<'a, D>, CudaError> {
        let missing = || CudaError::Call { action: "begin a pass", reason: "it has no memory".to_owned() };
        let (region, _) = self.work.as_ref().ok_or_else(missing)?;
        Ok(Pass {
            driver: &self.driver,
            config: &self.config,
            weights: (&self.weights, &self.places),
            adapter: adapted.then_some((&self.adapter, &self.learnt)),
            region,
            room,
            rows,
            tokens: rows.tokens.len(),
        })
    }
}

impl<D: Driver + Send> Compute for CardLearner<D> {
    fn take(&mut self, values: &[f32]) {
        let stale = self.stale.get_or_insert_default();
        stale.clear();
        stale.extend_from_slice(values);
    }

    fn score(&mut self, pack: &Pack, base: bool) -> Result<Vec<Score>, ModelError> {
        let (rows, room) = self.ready(pack, false)?;
        let pass = self.pass(&rows, &room, !base)?;
        pass.begin()?;
        pass.forward(false)?;
        Ok(pass.score()?)
    }

    fn likeliest(&mut self, _: &Pack, _: usize, _: bool) -> Result<Vec<Likeliest>, ModelError> {
        Err(ModelError::Input(UNTAUGHT.to_owned()))
    }

    fn states(&mut self, _: &Pack, _: bool) -> Result<Vec<Vec<f32>>, ModelError> {
        Err(ModelError::Input(STATELESS.to_owned()))
    }

    fn learn(&mut self, pack: &Pack, objective: &mut dyn Objective, gradients: &mut [f32]) -> Result<(), ModelError> {
        let (rows, room) = self.ready(pack, true)?;
        let learnt = self.driver.span(&self.learnt, self.adapter.gradients);
        self.driver.clear(learnt)?;
        let pass = self.pass(&rows, &room, true)?;
        pass.begin()?;
        pass.forward(true)?;
        pass.descend(objective)?;
        pass.backward()?;
        let mut found = vec![0.0; gradients.len()];
        self.driver.download(learnt, &mut found)?;
        gradients.iter_mut().zip(found).for_each(|(gradient, found)| *gradient += found);
        Ok(())
    }

    fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
    }

    fn on_card(&self) -> bool {
        true
    }

    /// Of any sequences that make so many tokens, each counted in whole blocks.
    fn bytes(&self, tokens: usize) -> usize {
        let size = Size::most(&self.config, tokens, self.adapter.ranks());
        self.resting() + Room::new(&self.config, &size).bytes
    }

    fn bytes_of(&self, pack: &Pack) -> usize {
        let size = Size::new(&Rows::new(pack, &self.config), self.adapter.ranks(), true);
        self.resting() + Room::new(&self.config, &size).bytes
    }
}

impl<D: Driver> fmt::Debug for CardLearner<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CardLearner").field("adapter", &self.adapter.rank).finish_non_exhaustive()
    }
}

fn refused(reason: String) -> CudaError {
    ModelError::Input(reason).into()
}
