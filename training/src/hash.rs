//! Hashes that are the same on every machine.

use waymark_models::tokenizer::Tokenizer;

/// FNV-1a, 64 bits (Fowler, Noll, Vo): for seeds, where nobody makes collisions on purpose.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What a vocabulary is known by: 16 hexadecimal digits of the BLAKE3 of all its tokens, in the order of their ids. Where
/// it is the same, ids mean the same.
pub fn vocabulary(tokenizer: &Tokenizer) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    for id in 0..tokenizer.vocab() as u32 {
        add(tokenizer.bytes_of(id));
        // Control tokens have no bytes, only a name.
        if tokenizer.is_control(id) {
            add(tokenizer.name(id).unwrap_or_default().as_bytes());
        }
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv() {
        // Test vectors of draft-eastlake-fnv, appendix C.
        assert_eq!(fnv1a(*b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_vocabulary_is_known_again() {
        let digits = vocabulary(&Tokenizer::bytes());
        assert_eq!(digits, vocabulary(&Tokenizer::bytes()));
        assert!(digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digits}");
    }
}
