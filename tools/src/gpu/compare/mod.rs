//! Comparisons of two computations of the same sequences: where their greedy texts diverge, and how far their
//! probabilities differ.
//!
//! | module | compares |
//! |---|---|
//! | `greedy_text` | greedy text on two backends |
//! | `adapter` | greedy text of rows with and without adapters in one batch |
//! | `batching` | rows alone and in a batch |
//! | `graph_replay` | replayed CUDA graphs and plain launches |

pub(super) mod adapter;
pub(super) mod batching;
#[cfg(test)]
mod faulty;
pub(super) mod graph_replay;
pub(super) mod greedy_text;
mod harness;
mod tally;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Returns prompts of random tokens, with lengths between `from` and three times as much.
pub(super) fn prompts(count: usize, from: usize, vocab: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut prompt = |_| {
        let len = random.random_range(from..=3 * from);
        (0..len).map(|_| random.random_range(0..vocab as u32)).collect()
    };
    (0..count).map(&mut prompt).collect()
}
