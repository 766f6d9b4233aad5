//! Log-probabilities, entropies, and their slopes.

use half::bf16;

use super::bench::Bench;
use super::random::{wide, wide32};
use super::{BF16, CheckError, F32};
use crate::cuda::kernel::{Kernel, NONE, Score, ScoreBackward, reference};

const ROWS: usize = 4;

pub(super) fn check(bench: &mut Bench<'_>) -> Result<(), CheckError> {
    for vocab in [1, 511, 5003] {
        let mut logits = bench.random.floats(ROWS * vocab, 3.0);
        if vocab > 1 {
            logits[vocab - 1] = f32::NEG_INFINITY;
        }
        let mut targets: Vec<u32> = (0..ROWS).map(|_| bench.random.below(vocab.div_ceil(2)) as u32).collect();
        targets[2] = NONE;
        let slopes = bench.random.floats(2 * ROWS, 1.0);
        let (scores, gradient) = (bench.poisoned::<f32>(3 * ROWS)?, bench.poisoned::<bf16>(ROWS * vocab)?);
        let (all, ids) = (bench.put(&logits)?, bench.put(&targets)?);
        let (rows, width) = (ROWS as u32, vocab as u32);
        Score { logits: all, targets: ids, scores, rows, vocab: width }.launch(&bench.card)?;
        let along = bench.put(&slopes)?;
        ScoreBackward { logits: all, targets: ids, scores, slopes: along, gradient, rows, vocab: width }
            .launch(&bench.card)?;
        let (mut wanted, mut wanted_slopes) = (Vec::new(), Vec::new());
        for (row, &target) in targets.iter().enumerate() {
            if target == NONE {
                wanted.extend([0.0; 3]);
                wanted_slopes.extend(vec![0.0; vocab]);
                continue;
            }
            let logits = wide32(&logits[row * vocab..][..vocab]);
            let said = reference::said(&logits, target as usize);
            wanted.extend([said.logprob, said.entropy, said.normaliser]);
            let slopes = [slopes[2 * row], slopes[2 * row + 1]].map(f64::from);
            wanted_slopes.extend(reference::said_backward(&logits, target as usize, slopes));
        }
        let case = format!("{ROWS} × {vocab}");
        let found = wide32(&bench.get(&scores)?);
        bench.compare(Kernel::Score, &case, &found, &wanted, F32);
        let found = wide(&bench.get(&gradient)?);
        bench.compare(Kernel::ScoreBackward, &case, &found, &wanted_slopes, BF16);
        bench.clear()?;
    }
    Ok(())
}
