//! Keys of the prefix cache: hashes of everything that the KV of a block depends on.

use waymark_models::BLOCK;

/// Identifies the KV of a block: the weights, the tenant, all tokens before the block and its own tokens. 128 bits of
/// BLAKE3, so a client cannot construct two prefixes that collide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PrefixKey([u8; 16]);

impl PrefixKey {
    /// Returns the parent key of a first block.
    pub(super) fn root(base: u64, adapter: Option<u64>, salt: u64) -> Self {
        let mut input = [0; 25];
        input[..8].copy_from_slice(&base.to_le_bytes());
        input[8..16].copy_from_slice(&adapter.unwrap_or(0).to_le_bytes());
        input[16..24].copy_from_slice(&salt.to_le_bytes());
        // Distinguishes the base model from an adapter with generation 0.
        input[24] = u8::from(adapter.is_some());
        Self::digest(&input)
    }

    /// Returns the key of the block of `tokens` that follows the block with this key.
    pub(super) fn child(self, tokens: &[u32]) -> Self {
        debug_assert_eq!(tokens.len(), BLOCK, "only full blocks are shared");
        let mut input = [0; 16 + 4 * BLOCK];
        input[..16].copy_from_slice(&self.0);
        for (bytes, token) in input[16..].chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        Self::digest(&input)
    }

    fn digest(input: &[u8]) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&blake3::hash(input).as_bytes()[..16]);
        Self(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_the_content_depends_on_changes_the_key() {
        let tokens: Vec<u32> = (0..16).collect();
        let key = PrefixKey::root(1, None, 0).child(&tokens);
        assert_eq!(key, PrefixKey::root(1, None, 0).child(&tokens));
        let mut other = tokens.clone();
        other[15] = 99;
        let others = [
            PrefixKey::root(1, None, 0).child(&other),
            PrefixKey::root(2, None, 0).child(&tokens),
            PrefixKey::root(1, Some(0), 0).child(&tokens),
            PrefixKey::root(1, None, 7).child(&tokens),
            key.child(&tokens),
        ];
        assert!(others.iter().all(|other| *other != key));
    }
}
