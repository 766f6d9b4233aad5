//! Identity of a key as an owner.

/// Identity of a key as the owner of stored objects. It is derived from the key itself, so that a key which gets the
/// name of a removed one does not get its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyOwner(u128);

impl KeyOwner {
    /// Creates the identity from bytes derived from the key.
    pub(super) fn new(derived: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(derived))
    }
}
