//! A key as its owner has it, and as it is stored.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// What every key made here begins with, so that it can be recognised where it should not be.
const PREFIX: &str = "wm_";

/// Before the digest of a key, so that the way it was made can change one day.
const METHOD: &str = "blake3:";

/// Random bytes of a key.
const BYTES: usize = 32;

/// Shortest key that is taken from outside, in characters: one that could be guessed would need a slow hash.
const SHORTEST: usize = 24;

/// A key as its owner has it. Is never logged and never stored.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a text is no key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SecretError {
    /// It could be guessed.
    #[error("a key has at least {SHORTEST} characters: make one with `waymark key new`")]
    Short,
    /// A header could not hold it.
    #[error("a key has no spaces and only ASCII characters")]
    Characters,
    /// It is no digest.
    #[error("a stored key is `{METHOD}` and 64 hexadecimal digits, as `waymark key new` prints it")]
    Digest,
}

impl Secret {
    /// A new key: 256 bits from the system's source of randomness.
    pub fn generate() -> Self {
        let bytes: [u8; BYTES] = rand::random();
        Self(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// The key itself, for the one it is made for.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// As it is stored.
    pub fn digest(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SecretError::Characters);
        }
        if text.len() < SHORTEST {
            return Err(SecretError::Short);
        }
        Ok(Self(text.to_owned()))
    }
}

/// A key as it is stored: its BLAKE3 hash. Keys are long and random, so a fast hash gives nothing away. Two of them are
/// compared in a time that does not depend on where they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(blake3::Hash);

impl Digest {
    /// The digest of what a client sent.
    pub(super) fn of(sent: &[u8]) -> Self {
        Self(blake3::hash(sent))
    }

    /// A number that stands for the key and that nobody can choose; never 0.
    pub(super) fn salt(&self) -> u64 {
        let derived = blake3::derive_key("waymark 2026-11 salt of the prefix cache", self.0.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&derived[..8]);
        u64::from_le_bytes(first).max(1)
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
        let (one, other) = (Secret::generate(), Secret::generate());
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
        let (one, other) = (Secret::generate().digest(), Secret::generate().digest());
        assert_eq!(one.salt(), one.salt());
        assert_ne!(one.salt(), other.salt());
    }
}
