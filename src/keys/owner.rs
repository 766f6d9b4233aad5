//! Identity of a key as an owner.

use std::fmt;

/// Identity of a key as the owner of stored objects. It is derived from the key itself, so a key that gets the
/// name of a removed one does not get its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyOwner(u128);

impl KeyOwner {
    /// Creates the identity from bytes derived from the key.
    pub(super) fn new(derived: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(derived))
    }

    /// Parses the form that [`KeyOwner`]'s `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().map(Self)
    }

    /// Returns the number of the key as a tenant of the engine.
    pub(crate) fn tenant(self) -> u64 {
        // Two of 2³² keys may have the same lower half, and would share one tenant's part.
        self.0 as u64
    }
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
