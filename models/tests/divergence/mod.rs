//! Divergence between two ways to compute logits, on real text.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::fmt;
use std::path::Path;

use waymark_models::checkpoint::Checkpoint;
use waymark_models::tokenizer::Specials;

use crate::fixture::difference;

/// Real prose in the repository.
const TEXT: &str = include_str!("../../../docs/design-notes.md");

/// Sequences of `length` tokens of real text.
pub fn sequences(weights: &Path, length: usize, count: usize) -> Vec<Vec<u32>> {
    let checkpoint = Checkpoint::open(weights).unwrap();
    let tokens = checkpoint.tokenizer.encode(TEXT, Specials::Literal).unwrap();
    let sequences: Vec<_> = tokens.chunks_exact(length).take(count).map(<[u32]>::to_vec).collect();
    assert_eq!(sequences.len(), count, "the text is too short");
    sequences
}

/// Differences of logits from exact ones, over all positions so far.
#[derive(Debug, Default)]
pub struct Divergence {
    sum: f64,
    /// Largest divergence of a position.
    pub largest: f64,
    /// Number of positions with the same likeliest token.
    pub agreed: usize,
    /// Number of positions.
    pub count: usize,
    /// Largest difference of a logit.
    pub apart: f32,
}

impl Divergence {
    /// Adds positions.
    pub fn add(&mut self, exact: &[Vec<f32>], other: &[Vec<f32>]) {
        assert_eq!(exact.len(), other.len());
        for (exact, other) in exact.iter().zip(other) {
            let p = log_softmax(exact);
            let q = log_softmax(other);
            let divergence: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
            self.sum += divergence;
            self.largest = self.largest.max(divergence);
            self.agreed += usize::from(likeliest(exact) == likeliest(other));
            self.apart = self.apart.max(difference(exact, other));
            self.count += 1;
        }
    }

    /// Mean Kullback-Leibler divergence of the exact distribution from the other one, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Share of positions with the same likeliest token.
    pub fn agreement(&self) -> f64 {
        self.agreed as f64 / self.count as f64
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mean KL {:.1e}, largest {:.1e}, likeliest token equal at {} of {} positions, largest difference of a logit {:.1e}",
            self.mean(),
            self.largest,
            self.agreed,
            self.count,
            self.apart
        )
    }
}

/// Log-probabilities of all tokens.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit - most) - sum.ln()).collect()
}

fn likeliest(logits: &[f32]) -> usize {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}
