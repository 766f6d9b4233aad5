//! Hashes that are the same on every machine.

use std::fs::File;
use std::io;
use std::path::Path;

use waymark_models::tokenizer::Tokenizer;

/// Computes the 64-bit FNV-1a hash (Fowler, Noll, Vo). Used for seeds, where collisions by an attacker do not matter.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the BLAKE3 hash of a file's contents, as hexadecimal digits.
///
/// # Errors
/// If the file cannot be read.
pub fn file(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Returns an identifier of a vocabulary: 16 hexadecimal digits of the BLAKE3 hash of all its tokens in the order of
/// their ids. Equal identifiers mean that token ids are interchangeable.
pub fn vocabulary(tokenizer: &Tokenizer) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        // The length prefix distinguishes sequences whose concatenated bytes are equal, such as `ab`, `c` and `a`,
        // `bc`.
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
    fn fnv1a_matches_published_vectors() {
        // Test vectors of draft-eastlake-fnv, appendix C.
        assert_eq!(fnv1a(*b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn equal_vocabularies_have_equal_identifiers() {
        let digits = vocabulary(&Tokenizer::bytes());
        assert_eq!(digits, vocabulary(&Tokenizer::bytes()));
        assert!(digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digits}");
    }
}
