//! Choice of the fastest algorithm for each shape of matrix multiplication, by measurement.

use std::time::{Duration, Instant};

use super::cublas_lt::LtHandle;
use super::{Blas, Gpu, GpuEvent};
use crate::cuda::CudaError;
use crate::cuda::algorithms::{
    self, Algorithm, AlgorithmFile, AlgorithmScope, AlgorithmTable, MatMulShape, OperandFormat,
};
use crate::cuda::driver::MatMul;

/// Time limit of all measurements of one decoder. Shapes left over are multiplied by the default of cuBLAS, and those in
/// `e4m3` by other kernels.
const LIMIT: Duration = Duration::from_secs(60);
/// Aimed duration of one round of measurement, in seconds.
const ROUND: f64 = 1e-3;
/// Number of rounds, of which the fastest counts.
const ROUNDS: usize = 3;
/// Maximum number of products per round.
const MOST: usize = 32;

/// Algorithms in use by one cuBLAS handle.
pub(super) struct ChosenAlgorithms {
    pub(super) lt: LtHandle,
    pub(super) table: AlgorithmTable,
}

impl Blas {
    /// Chooses an algorithm for each group of products of the same shape, where `file` has none. The products are computed:
    /// their targets have to be memory without meaning.
    ///
    /// Without cublasLt, or if it fails, products are computed as before.
    ///
    /// # Errors
    /// The GPU is lost.
    pub(crate) fn tune(
        &mut self,
        gpu: &Gpu,
        groups: &[Vec<MatMul>],
        file: Option<&AlgorithmFile>,
    ) -> Result<(), CudaError> {
        let lt = match self.lt(gpu) {
            Ok(lt) => lt,
            Err(error) => {
                tracing::warn!("{error}; matrices are multiplied by the default algorithms of cuBLAS");
                return Ok(());
            }
        };
        let info = gpu.info();
        let scope = AlgorithmScope { gpu: info.name.clone(), driver: info.driver.clone(), library: lt.version() };
        let mut table = file.map(|file| file.read(&scope)).unwrap_or_default();
        let started = Instant::now();
        let chosen = self.choose(gpu, &lt, groups, &mut table)?;
        if chosen > 0 {
            let seconds = started.elapsed().as_secs_f64();
            tracing::info!(chosen, shapes = groups.len(), seconds, "chose algorithms of matrix multiplications");
            if let Some(file) = file
                && let Err(error) = file.write(&scope, &table)
            {
                tracing::warn!(path = %file.path().display(), "cannot keep the chosen algorithms: {error}");
            }
        }
        let shapes = groups.iter().filter_map(|group| group.first().and_then(MatMulShape::of));
        if let Some(shapes) = table.missing_fp8(shapes) {
            tracing::warn!(%shapes, "cublasLt cannot multiply matrices in fp8 with a scale per row; slower kernels do");
        }
        self.chosen = Some(ChosenAlgorithms { lt, table });
        Ok(())
    }

    /// Chooses the algorithms that `table` lacks. Returns their number.
    fn choose(
        &self,
        gpu: &Gpu,
        lt: &LtHandle,
        groups: &[Vec<MatMul>],
        table: &mut AlgorithmTable,
    ) -> Result<usize, CudaError> {
        let started = Instant::now();
        let mut chosen = 0;
        for group in groups {
            let Some(shape) = group.first().and_then(MatMulShape::of) else { continue };
            if table.contains(&shape) && usable(lt, &group[0], &shape, table.find(&shape)) {
                continue;
            }
            table.remove(&shape);
            if started.elapsed() >= LIMIT {
                tracing::warn!(seconds = LIMIT.as_secs(), "some algorithms were not chosen within the time limit");
                break;
            }
            table.insert(shape, self.fastest(gpu, lt, group)?);
            chosen += 1;
        }
        Ok(chosen)
    }

    /// Returns the fastest algorithm for products of one shape. `None` is the default of cuBLAS, if it has one.
    fn fastest(&self, gpu: &Gpu, lt: &LtHandle, group: &[MatMul]) -> Result<Option<Algorithm>, CudaError> {
        let proposals =
            group.first().map_or_else(|| Ok(Vec::new()), |product| lt.proposals(product)).unwrap_or_default();
        // An error, and hence no time, for operands in `e4m3`.
        let mut seconds = vec![measure(gpu, group, |product| self.multiply_by_default(product).map(|()| true))?];
        for algorithm in &proposals {
            seconds.push(measure(gpu, group, |product| lt.multiply(product, algorithm))?);
        }
        // The default stands first, and so wins where nothing is faster by more than noise.
        let best = algorithms::choose(&seconds).and_then(|best| best.checked_sub(1));
        Ok(best.map(|best| proposals[best]))
    }
}

/// Returns `true` for an algorithm that the library accepts, and for the default where cuBLAS has one. Products in `e4m3`
/// have none: those without an algorithm are measured again, since what failed once may work now.
fn usable(lt: &LtHandle, product: &MatMul, shape: &MatMulShape, algorithm: Option<Algorithm>) -> bool {
    match algorithm {
        Some(algorithm) => lt.accepts(product, &algorithm).unwrap_or(false),
        None => shape.operands != OperandFormat::Fp8,
    }
}

/// Returns the seconds per product, `None` when one cannot be computed.
///
/// # Errors
/// The GPU is lost.
fn measure(
    gpu: &Gpu,
    group: &[MatMul],
    multiply: impl Fn(&MatMul) -> Result<bool, CudaError>,
) -> Result<Option<f64>, CudaError> {
    let run = |count: usize| -> Result<Option<f64>, CudaError> {
        let [before, after] = [GpuEvent::new(gpu)?, GpuEvent::new(gpu)?];
        let started = Instant::now();
        before.record(gpu)?;
        for product in group.iter().cycle().take(count) {
            if !multiply(product).unwrap_or(false) {
                // What was enqueued before has to end before the next measurement.
                gpu.synchronize()?;
                return Ok(None);
            }
        }
        after.record(gpu)?;
        after.wait(gpu, started, &mut gpu.adaptive_wait())?;
        Ok(Some(before.seconds_to(&after)? / count as f64))
    };
    // The first product loads the kernel; the second tells how many make a round.
    let Some(_) = run(1)? else { return Ok(None) };
    let Some(once) = run(1)? else { return Ok(None) };
    let count = ((ROUND / once.max(1e-9)) as usize).clamp(1, MOST);
    let mut best: Option<f64> = None;
    for _ in 0..ROUNDS {
        let Some(seconds) = run(count)? else { return Ok(None) };
        best = Some(best.map_or(seconds, |best| best.min(seconds)));
    }
    Ok(best)
}
