//! Two ways of computing the same sequences: where their greedy texts part, and how far their probabilities are apart.
//!
//! | file | what is compared |
//! |---|---|
//! | `text` | greedy text on two backends |
//! | `adapter` | the same of rows with adapters and without in one batch |
//! | `crowd` | rows by themselves and among many |
//! | `recording` | steps that are replayed and the same steps launched |

pub(super) mod adapter;
mod bed;
pub(super) mod crowd;
#[cfg(test)]
mod planted;
pub(super) mod recording;
mod tally;
pub(super) mod text;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Prompts of random tokens, of `from` to three times as many.
pub(super) fn prompts(count: usize, from: usize, vocab: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut prompt = |_| {
        let len = random.random_range(from..=3 * from);
        (0..len).map(|_| random.random_range(0..vocab as u32)).collect()
    };
    (0..count).map(&mut prompt).collect()
}
