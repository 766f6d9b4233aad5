//! Tokens from a hash of the context.

use waymark_models::AdapterSlot;

/// A function from context to next token that no part of the context can be left out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    /// Another seed, another text.
    pub seed: u64,
    /// Ids to choose from; of a large vocabulary only the printable ASCII bytes are chosen.
    pub vocab: usize,
}

impl Random {
    /// The token that follows `context`.
    pub fn next(&self, adapter: Option<AdapterSlot>, context: &[u32]) -> u32 {
        let adapter = adapter.map_or(0, |slot| u64::from(slot.0) + 1);
        let hash = fold(mix(self.seed, adapter), context);
        let (first, count) = if self.vocab > 126 { (32, 95) } else { (0, self.vocab.max(1)) };
        // Less than `vocab`, which fits token ids.
        first + ((hash >> 32) % count as u64) as u32
    }
}

/// Folds tokens into a hash.
pub(super) fn fold(hash: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(hash, |hash, token| mix(hash, u64::from(*token)))
}

/// One round of a multiplicative hash: good enough to notice a difference, no defence against intent.
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_context_counts() {
        let random = Random { seed: 1, vocab: 259 };
        let context: Vec<u32> = (0..200).collect();
        let said: Vec<u32> = (1..200).map(|len| random.next(None, &context[..len])).collect();
        assert!(said.iter().all(|id| (32..127).contains(id)));
        let other = Random { seed: 2, ..random };
        let differs = |other: Vec<u32>| said.iter().zip(&other).filter(|(a, b)| a != b).count() > 150;
        assert!(differs((1..200).map(|len| other.next(None, &context[..len])).collect()));
        assert!(differs((1..200).map(|len| random.next(Some(AdapterSlot(0)), &context[..len])).collect()));
        let mut changed = context.clone();
        changed[0] = 99;
        assert!(differs((1..200).map(|len| random.next(None, &changed[..len])).collect()));
    }
}
