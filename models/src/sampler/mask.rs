//! Bit set over token IDs.

/// Set of allowed tokens. IDs beyond its length are forbidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `id % 32` of word `id / 32`.
    words: Vec<u32>,
    len: usize,
}

impl TokenMask {
    /// Creates a mask that allows all of `len` tokens.
    pub fn all(len: usize) -> Self {
        Self::from_words(vec![u32::MAX; len.div_ceil(32)], len)
    }

    /// Creates a mask that allows the listed IDs below `len`, in any order.
    pub fn of(ids: &[u32], len: usize) -> Self {
        let mut words = vec![0; len.div_ceil(32)];
        ids.iter().filter(|&&id| (id as usize) < len).for_each(|&id| words[id as usize / 32] |= 1 << (id % 32));
        Self::from_words(words, len)
    }

    /// Creates a mask from raw bits: bit `id % 32` of word `id / 32`, for IDs below `len`.
    pub fn from_words(words: Vec<u32>, len: usize) -> Self {
        let len = len.min(words.len() * 32);
        Self { words, len }
    }

    /// Returns `true` if the token is allowed.
    pub fn allows(&self, id: u32) -> bool {
        (id as usize) < self.len && self.words[id as usize / 32] >> (id % 32) & 1 == 1
    }

    /// Forbids a token. Tokens beyond the length are forbidden already.
    pub fn forbid(&mut self, id: u32) {
        if (id as usize) < self.len {
            self.words[id as usize / 32] &= !(1 << (id % 32));
        }
    }

    /// Forbids all tokens that `other` does not allow.
    pub fn keep(&mut self, other: &TokenMask) {
        for (at, word) in self.words.iter_mut().enumerate() {
            *word &= other.word(at);
        }
    }

    /// Allows all tokens that `other` allows, up to this mask's length.
    pub fn add(&mut self, other: &TokenMask) {
        for (at, word) in self.words.iter_mut().enumerate() {
            *word |= other.word(at);
        }
    }

    /// Bits of one word, without those beyond the length.
    pub(crate) fn word(&self, at: usize) -> u32 {
        let word = self.words.get(at).copied().unwrap_or(0);
        match self.len.saturating_sub(at * 32) {
            0 => 0,
            bits @ 1..32 => word & ((1 << bits) - 1),
            _ => word,
        }
    }

    /// Number of IDs covered.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if no token is allowed.
    pub fn is_empty(&self) -> bool {
        (0..self.len as u32).all(|id| !self.allows(id))
    }

    /// Sets the logits of forbidden tokens to minus infinity.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        let (known, beyond) = logits.split_at_mut(self.len.min(logits.len()));
        for (chunk, &word) in known.chunks_mut(32).zip(&self.words) {
            match word {
                u32::MAX => {}
                0 => chunk.fill(f32::NEG_INFINITY),
                word => {
                    let forbidden = chunk.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                    forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
        beyond.fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_tokens() {
        let mut mask = TokenMask::all(70);
        assert!(mask.allows(0) && mask.allows(69) && !mask.allows(70) && !mask.is_empty());
        mask.forbid(33);
        mask.forbid(1000);
        assert!(!mask.allows(33) && mask.allows(32) && mask.allows(34));
        let mut logits = vec![1.0; 80];
        mask.apply(&mut logits);
        for (id, logit) in (0..).zip(&logits) {
            assert_eq!(*logit == 1.0, mask.allows(id), "{id}");
        }
        let mut even = TokenMask::from_words(vec![0x5555_5555; 3], 70);
        even.keep(&mask);
        assert!(even.allows(32) && !even.allows(33) && !even.allows(35) && even.allows(68));
        even.add(&TokenMask::from_words(vec![0b10], 32));
        assert!(even.allows(1) && !even.allows(3) && even.allows(32));
        even.keep(&TokenMask::all(40));
        assert!(even.allows(38) && !even.allows(40) && !even.allows(68));
        let listed = TokenMask::of(&[69, 3, 3, 70, 1000], 70);
        assert!((0..80).all(|id| listed.allows(id) == [3, 69].contains(&id)));
        let none = TokenMask::from_words(vec![0; 3], 70);
        assert!(none.is_empty() && none.len() == 70);
        let mut few = vec![1.0; 5];
        none.apply(&mut few);
        assert!(few.iter().all(|logit| *logit == f32::NEG_INFINITY));
    }
}
