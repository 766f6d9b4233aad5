//! Log-probabilities, entropies, and their gradients.

use half::bf16;

use super::bench::CheckBench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::{CudaKernel, NONE, ScoreTargets, ScoreTargetsBackward, reference};

const ROWS: usize = 4;

pub(super) fn check(bench: &mut CheckBench<'_>) -> Result<(), CheckError> {
    for vocab in [1, 511, 5003] {
        let mut logits = bench.random.floats(ROWS * vocab, 3.0);
        if vocab > 1 {
            logits[vocab - 1] = f32::NEG_INFINITY;
        }
        let mut targets: Vec<u32> = (0..ROWS).map(|_| bench.random.below(vocab.div_ceil(2)) as u32).collect();
        targets[2] = NONE;
        let slopes = bench.random.floats(2 * ROWS, 1.0);
        let scores = bench.poisoned::<f32>(3 * ROWS)?;
        let gradient = bench.poisoned::<bf16>(ROWS * vocab)?;
        let all = bench.put(&logits)?;
        let ids = bench.put(&targets)?;
        let rows = ROWS as u32;
        let width = vocab as u32;
        ScoreTargets { logits: all, targets: ids, scores, rows, vocab: width }.launch(&bench.device)?;
        let along = bench.put(&slopes)?;
        ScoreTargetsBackward { logits: all, targets: ids, scores, slopes: along, gradient, rows, vocab: width }
            .launch(&bench.device)?;
        let mut wanted = Vec::new();
        let mut wanted_slopes = Vec::new();
        for (row, &target) in targets.iter().enumerate() {
            if target == NONE {
                wanted.extend([0.0; 3]);
                wanted_slopes.extend(vec![0.0; vocab]);
                continue;
            }
            let logits = wide32(&logits[row * vocab..][..vocab]);
            let said = reference::score_target(&logits, target as usize);
            wanted.extend([said.logprob, said.entropy, said.normalizer]);
            let slopes = [slopes[2 * row], slopes[2 * row + 1]].map(f64::from);
            wanted_slopes.extend(reference::score_target_backward(&logits, target as usize, slopes));
        }
        let case = format!("{ROWS} × {vocab}");
        let found = wide32(&bench.get(&scores)?);
        bench.compare(CudaKernel::ScoreTargets, &case, &found, &wanted, F32);
        let found = wide(&bench.get(&gradient)?);
        bench.compare(CudaKernel::ScoreTargetsBackward, &case, &found, &wanted_slopes, BF16);
        bench.clear()?;
    }
    Ok(())
}
