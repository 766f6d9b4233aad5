//! Timing of steps, kernel by kernel.

#[cfg(feature = "cuda")]
mod gpu;

use std::ops::Range;
use std::time::Duration;

use super::runner::StepRunner;
use crate::batch::{ForwardBatch, LogitPositions};
use crate::cuda::CudaError;
use crate::cuda::bucket::Buckets;
use crate::cuda::driver::{DeviceClock, Driver};
use crate::cuda::plan::{StepLimits, WeightFormat};
use crate::cuda::profile::{StepLoad, StepProfile, StepTimings, TimedDriver, UniformBatch};
use crate::cuda::source::WeightSource;
use crate::cuda::step_layout::{StepShape, StepWriter};
use crate::sampler::Pick;

#[cfg(feature = "cuda")]
pub use gpu::CudaProfiler;

/// Delay of a step until all of it is enqueued: several times the launch overhead.
const PAUSE: Duration = Duration::from_millis(20);

/// A decoder used to time steps.
pub(super) struct Profiler<D: DeviceClock> {
    pub(super) runner: StepRunner<TimedDriver<D>>,
    writer: StepWriter,
    buckets: Buckets,
    /// Layout of a step on the host.
    upload: Vec<u64>,
}

impl<D: DeviceClock> Profiler<D> {
    /// Allocates memory for steps within `limits` and for `blocks` KV blocks, and loads the weights in this format. The
    /// caller has checked that kernels support the configuration.
    pub(super) fn load(
        driver: D,
        source: WeightSource<'_>,
        format: WeightFormat,
        limits: StepLimits,
        multiprocessors: u32,
        blocks: usize,
    ) -> Result<Self, CudaError> {
        let writer = StepWriter::new(source.config(), limits, blocks);
        let runner = StepRunner::load(TimedDriver::new(driver), source, format, limits, multiprocessors, blocks)?;
        let upload = vec![0; runner.step_layout.bytes.div_ceil(size_of::<u64>())];
        Ok(Self { runner, writer, buckets: Buckets::up_to(limits.rows), upload })
    }

    /// Times a step in which every sequence processes new tokens and samples one. Returns the fastest of `rounds`
    /// rounds.
    pub(super) fn profile(&mut self, alike: UniformBatch, rounds: usize) -> Result<StepProfile, CudaError> {
        // Compute the context first: reading a cache of zeros would draw less power and be faster than reading real
        // values.
        let most = self.runner.limits.tokens;
        for row in 0..alike.rows {
            for start in (0..alike.before).step_by(most) {
                let new = most.min(alike.before - start);
                let batch = self.batch(row..row + 1, &(start..start + new), alike.table(), LogitPositions::Nothing);
                let step = self.fill(&batch, &[])?;
                self.runner.run(&step, None)?;
            }
        }
        let UniformBatch { rows, before, new } = alike;
        let batch = self.batch(0..rows, &(before..before + new), alike.table(), LogitPositions::Last);
        let step = self.fill(&batch, &vec![Some(Pick::GREEDY); rows])?;
        // Warm up: kernels are loaded at their first use.
        self.runner.run(&step, None)?;
        self.runner.driver.inner().settle()?;
        let alone = fastest(rounds, || self.time_whole(&step))?;
        let pieces = fastest(rounds, || self.time_launches(&step))?;
        Ok(StepProfile::new(&alone, &pieces, &StepLoad::of(&self.runner.config, &batch)))
    }

    /// Runs a step with marks only at its start and end.
    fn time_whole(&self, step: &StepShape) -> Result<StepTimings, CudaError> {
        let clock = self.runner.driver.inner();
        clock.pause(PAUSE)?;
        let from = clock.mark()?;
        self.runner.run(step, None)?;
        let to = clock.mark()?;
        let late = clock.reached(&from)?;
        clock.settle()?;
        Ok(StepTimings { whole: clock.seconds(&from, &to)?, late, launches: Vec::new() })
    }

    /// Runs a step with marks around each launch.
    fn time_launches(&self, step: &StepShape) -> Result<StepTimings, CudaError> {
        let driver = &self.runner.driver;
        driver.inner().pause(PAUSE)?;
        driver.start();
        let run = self.runner.run(step, None);
        // Stop even after an error: otherwise timing would stay on.
        let timings = driver.stop();
        run.and(timings)
    }

    /// Creates a batch with new tokens at positions `at` for sequences `rows`, each with `table` consecutive blocks.
    fn batch(&self, rows: Range<usize>, at: &Range<usize>, table: usize, want: LogitPositions) -> ForwardBatch {
        let vocab = self.runner.config.vocab;
        let mut batch = ForwardBatch::new();
        for row in rows {
            let tokens: Vec<u32> = at.clone().map(|at| ((at * at * 31 + at * 7 + row * 101) % vocab) as u32).collect();
            let blocks: Vec<u32> = (row * table..(row + 1) * table).map(|block| block as u32).collect();
            batch.push(&tokens, at.start, &blocks, None, want);
        }
        batch
    }

    /// Writes a step's layout and copies it to the device.
    fn fill(&mut self, batch: &ForwardBatch, picks: &[Option<Pick>]) -> Result<StepShape, CudaError> {
        let Self { runner, writer, buckets, upload } = self;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(upload.as_mut_slice());
        let step = writer.fill(batch, picks, |_| false, |rows| buckets.fit(rows), bytes)?;
        runner.driver.bind()?;
        runner.upload_layout(bytes, &step)?;
        Ok(step)
    }
}

/// Runs `once` for `rounds` rounds, at least one, and returns the timings of the fastest.
fn fastest(rounds: usize, once: impl Fn() -> Result<StepTimings, CudaError>) -> Result<StepTimings, CudaError> {
    let mut best = once()?;
    for _ in 1..rounds {
        let found = once()?;
        if found.whole < best.whole {
            best = found;
        }
    }
    Ok(best)
}
