//! Steps that are timed, piece by piece.

#[cfg(feature = "cuda")]
mod card;

use std::ops::Range;
use std::time::Duration;

use super::machine::Machine;
use crate::batch::{ForwardBatch, Want};
use crate::cuda::CudaError;
use crate::cuda::bucket::Buckets;
use crate::cuda::driver::{Clock, Driver};
use crate::cuda::image::{Filler, Step};
use crate::cuda::plan::Limits;
use crate::cuda::profile::{Alike, Load, Profile, Timed, Timings};
use crate::cuda::source::Source;
use crate::sampler::Pick;

#[cfg(feature = "cuda")]
pub use card::CudaProfiler;

/// How long a step waits until all of it is in line: several times what launching it takes.
const PAUSE: Duration = Duration::from_millis(20);

/// A decoder whose steps are there to be timed.
pub(super) struct Profiler<D: Clock> {
    pub(super) machine: Machine<Timed<D>>,
    filler: Filler,
    buckets: Buckets,
    /// A step's layout, on the host.
    upload: Vec<u64>,
}

impl<D: Clock> Profiler<D> {
    /// Takes memory for steps within `limits` and for `blocks` KV blocks, and loads the weights. The configuration is one
    /// that kernels were written for.
    pub(super) fn load(
        driver: D,
        source: Source<'_>,
        limits: Limits,
        processors: u32,
        blocks: usize,
    ) -> Result<Self, CudaError> {
        let filler = Filler::new(source.config(), limits, blocks);
        let machine = Machine::load(Timed::new(driver), source, limits, processors, blocks)?;
        let upload = vec![0; machine.image.bytes.div_ceil(size_of::<u64>())];
        Ok(Self { machine, filler, buckets: Buckets::up_to(limits.rows), upload })
    }

    /// Times a step in which all of some sequences bring new tokens and have a token chosen: of `rounds` rounds the quickest.
    pub(super) fn profile(&mut self, alike: Alike, rounds: usize) -> Result<Profile, CudaError> {
        // What they have is computed first: a cache of zeros would draw less power than one of numbers, and be read faster.
        let most = self.machine.limits.tokens;
        for row in 0..alike.rows {
            for start in (0..alike.before).step_by(most) {
                let new = most.min(alike.before - start);
                let batch = self.batch(row..row + 1, &(start..start + new), alike.table(), Want::Nothing);
                let step = self.fill(&batch, &[])?;
                self.machine.run(&step, None)?;
            }
        }
        let Alike { rows, before, new } = alike;
        let batch = self.batch(0..rows, &(before..before + new), alike.table(), Want::Last);
        let step = self.fill(&batch, &vec![Some(Pick::GREEDY); rows])?;
        // Kernels are loaded at their first use.
        self.machine.run(&step, None)?;
        self.machine.driver.clock().settle()?;
        let alone = quickest(rounds, || self.whole(&step))?;
        let pieces = quickest(rounds, || self.pieces(&step))?;
        Ok(Profile::new(&alone, &pieces, &Load::of(&self.machine.config, &batch)))
    }

    /// Runs a step with marks at its ends alone.
    fn whole(&self, step: &Step) -> Result<Timings, CudaError> {
        let clock = self.machine.driver.clock();
        clock.pause(PAUSE)?;
        let from = clock.mark()?;
        self.machine.run(step, None)?;
        let to = clock.mark()?;
        let late = clock.reached(&from)?;
        clock.settle()?;
        Ok(Timings { whole: clock.seconds(&from, &to)?, late, launches: Vec::new() })
    }

    /// Runs a step with marks on both sides of each launch.
    fn pieces(&self, step: &Step) -> Result<Timings, CudaError> {
        let driver = &self.machine.driver;
        driver.clock().pause(PAUSE)?;
        driver.start();
        let run = self.machine.run(step, None);
        // In any case, or all that comes later would be timed as well.
        let timings = driver.stop();
        run.and(timings)
    }

    /// Tokens of some sequences at some positions; each sequence's `table` blocks lie one behind the other.
    fn batch(&self, rows: Range<usize>, at: &Range<usize>, table: usize, want: Want) -> ForwardBatch {
        let vocab = self.machine.config.vocab;
        let mut batch = ForwardBatch::new();
        for row in rows {
            let tokens: Vec<u32> = at.clone().map(|at| ((at * at * 31 + at * 7 + row * 101) % vocab) as u32).collect();
            let blocks: Vec<u32> = (row * table..(row + 1) * table).map(|block| block as u32).collect();
            batch.push(&tokens, at.start, &blocks, None, want);
        }
        batch
    }

    /// Lays a step out, and copies that to where it runs.
    fn fill(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<Step, CudaError> {
        let Self { machine, filler, buckets, upload } = self;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(upload.as_mut_slice());
        let step = filler.fill(batch, picks, |_| false, |rows| buckets.fit(rows), bytes)?;
        machine.driver.bind()?;
        machine.lay(bytes, &step)?;
        Ok(step)
    }
}

/// The shortest of some rounds, at least one.
fn quickest(rounds: usize, once: impl Fn() -> Result<Timings, CudaError>) -> Result<Timings, CudaError> {
    let mut best = once()?;
    for _ in 1..rounds {
        let found = once()?;
        if found.whole < best.whole {
            best = found;
        }
    }
    Ok(best)
}
