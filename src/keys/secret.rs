//! API keys in plain text, and their stored digests.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::owner::KeyOwner;

/// Prefix of every generated key, so secret scanners recognize a leaked one.
const PREFIX: &str = "wm_";

/// Prefix of the digest that names the hash function, so another one can be introduced later.
const METHOD: &str = "blake3:";

/// Number of random bytes in a key.
const BYTES: usize = 32;

/// Minimum length of an imported key, in characters: a guessable key would need a slow hash.
pub(super) const MIN_LENGTH: usize = 24;

/// API key in plain text. It is never logged and never stored.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Error parsing a key or a digest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SecretError {
    /// The key is short enough to be guessed.
    #[error("a key has at least {MIN_LENGTH} characters: make one with `waymark key new`")]
    Short,
    /// The key has characters that an HTTP header cannot hold.
    #[error("a key has no spaces and only ASCII characters")]
    Characters,
    /// The text is not a digest.
    #[error("a stored key is `{METHOD}` and 64 hexadecimal digits, as `waymark key new` prints it")]
    Digest,
}

impl Secret {
    /// Generates a key: 256 bits from the operating system's random number generator.
    pub fn generate() -> Self {
        let bytes: [u8; BYTES] = rand::random();
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Returns the key in plain text, to be shown to its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the digest under which the key is stored.
    pub fn digest(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        // Keys are often read from files that end in a line break.
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SecretError::Characters);
        }
        if text.len() < MIN_LENGTH {
            return Err(SecretError::Short);
        }
        Ok(Self(text.to_owned()))
    }
}

/// BLAKE3 hash of a key; keys are stored in this form. Keys are long and random, so a fast hash is safe. Comparison
/// takes constant time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(blake3::Hash);

impl Digest {
    /// Computes the digest of the bytes that a client sent.
    pub(super) fn of(sent: &[u8]) -> Self {
        Self(blake3::hash(sent))
    }

    /// Derives the cache salt of the key, which no client can choose. Never 0.
    pub(crate) fn salt(&self) -> u64 {
        let derived = blake3::derive_key("waymark 2026-11 salt of the prefix cache", self.0.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&derived[..8]);
        // 0 stands for the shared cache.
        u64::from_le_bytes(first).max(1)
    }
}

impl Digest {
    /// Derives the identity of the key as an owner of stored objects.
    pub fn owner(&self) -> KeyOwner {
        // Stored objects name their owner by this value, so the context string must never change.
        let derived = blake3::derive_key("waymark 2026-11 owner of stored objects", self.0.as_bytes());
        let mut first = [0; 16];
        first.copy_from_slice(&derived[..16]);
        KeyOwner::new(first)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{METHOD}{}", self.0.to_hex())
    }
}

impl FromStr for Digest {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let hex = text.strip_prefix(METHOD).ok_or(SecretError::Digest)?;
        blake3::Hash::from_hex(hex).map(Self).map_err(|_| SecretError::Digest)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_are_new_and_show_themselves_to_nobody() {
        let one = Secret::generate();
        let other = Secret::generate();
        assert_ne!(one.reveal(), other.reveal());
        assert_eq!(one.reveal().len(), 3 + 43);
        assert_eq!(one.reveal().parse::<Secret>().unwrap().digest(), one.digest());
        let shown = format!("{one:?} {:?} {}", one.digest(), one.digest());
        assert!(!shown.contains(&one.reveal()[3..]), "{shown}");
    }

    #[test]
    fn digests_are_written_and_read() {
        let secret = Secret::generate();
        let digest = secret.digest();
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(Digest::of(secret.reveal().as_bytes()), digest);
        assert_ne!(digest, Secret::generate().digest());
        for text in ["", "blake3:", "blake3:00", "sha256:00", secret.reveal()] {
            assert_eq!(text.parse::<Digest>(), Err(SecretError::Digest), "{text}");
        }
    }

    #[test]
    fn what_could_be_guessed_is_no_key() {
        assert_eq!("secret".parse::<Secret>().unwrap_err(), SecretError::Short);
        assert_eq!("a key with spaces in it, but long".parse::<Secret>().unwrap_err(), SecretError::Characters);
        assert_eq!(" wm_0123456789012345678901234567 \n".parse::<Secret>().unwrap().reveal().len(), 31);
    }

    #[test]
    fn salts_differ_by_key_and_stay() {
        let one = Secret::generate().digest();
        let other = Secret::generate().digest();
        assert_eq!(one.salt(), one.salt());
        assert_ne!(one.salt(), other.salt());
    }
}
