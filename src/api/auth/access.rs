//! Access that a route requires.

use crate::keys::Scope;

/// Access that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key required.
    Open,
    /// A key with this scope, if the server has keys.
    Needs(Scope),
}
