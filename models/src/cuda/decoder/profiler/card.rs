//! A profiler on a card.

use super::Profiler;
use crate::cuda::CudaError;
use crate::cuda::decoder::{CudaOptions, card};
use crate::cuda::driver::OnCard;
use crate::cuda::profile::{Alike, Profile};
use crate::cuda::source::Source;

/// A decoder on a card whose steps are there to be timed.
pub struct CudaProfiler(Profiler<OnCard>);

impl CudaProfiler {
    /// Opens a card, takes its memory and loads the weights. Nothing is recorded, whatever the options say.
    ///
    /// # Errors
    /// As [`CudaDecoder::load`](crate::cuda::CudaDecoder::load).
    pub fn load(source: Source<'_>, options: &CudaOptions) -> Result<Self, CudaError> {
        let (driver, plan) = card::open(source.config(), options)?;
        let processors = driver.card().info().processors;
        Ok(Self(Profiler::load(driver, source, options.limits, processors, plan.blocks)?))
    }

    /// Times a step in which all of some sequences bring new tokens and have a token chosen, launched kernel by kernel, by
    /// the card's own clock: of `rounds` rounds the quickest, at least one. What the sequences have in the cache is computed
    /// first.
    ///
    /// # Errors
    /// [`CudaError::Model`] when the step is larger than the limits or needs more KV blocks than there are; other errors
    /// come from the driver.
    pub fn profile(&mut self, alike: Alike, rounds: usize) -> Result<Profile, CudaError> {
        self.0.profile(alike, rounds)
    }
}

impl std::fmt::Debug for CudaProfiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let card = self.0.machine.driver.clock().card().info();
        f.debug_struct("CudaProfiler").field("card", card).finish_non_exhaustive()
    }
}
