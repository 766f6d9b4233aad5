//! Tokens derived from a hash of the context.

use waymark_models::AdapterSlot;

/// A function from context to next token that depends on every token of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    /// Seed; each gives another text.
    pub seed: u64,
    /// Number of token ids. From a large vocabulary only printable ASCII bytes are chosen.
    pub vocab: usize,
}

impl Random {
    /// Returns the token that follows `context`.
    pub fn next(&self, adapter: Option<AdapterSlot>, context: &[u32]) -> u32 {
        let adapter = adapter.map_or(0, |slot| u64::from(slot.0) + 1);
        let hash = mix(mix(self.seed, adapter), fold(context));
        let (first, count) = if self.vocab > 126 { (32, 95) } else { (0, self.vocab.max(1)) };
        // The sum is less than `vocab`, which fits a token id.
        first + ((hash >> 32) % count as u64) as u32
    }
}

/// Hashes a token sequence. The hash is a sum over positions, so each position is hashed independently.
pub(super) fn fold(tokens: &[u32]) -> u64 {
    tokens.iter().enumerate().fold(0, |sum, (position, token)| append(sum, position, *token))
}

/// Extends the hash of a sequence by a token at `position`, which is the length of the sequence so far.
pub(super) fn append(hash: u64, position: usize, token: u32) -> u64 {
    let place = (position as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    hash.wrapping_add(mix(place, u64::from(token)))
}

/// One round of a multiplicative hash: good enough to notice a difference, no defense against an attacker.
fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
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
