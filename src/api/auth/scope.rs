//! What a key may do, and what a route needs.

use std::fmt;

use serde::Deserialize;

/// What a key may do. None of them includes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Ask and search: everything that answers from what is served.
    Infer,
    /// Read and change the documents of the index.
    Index,
    /// Load and unload policies, and look inside the server.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 3] = [Scope::Infer, Scope::Index, Scope::Admin];

    /// Its name, as files and documents write it.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Infer => "infer",
            Scope::Index => "index",
            Scope::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: anybody may use it.
    Open,
    /// A key with this scope, where the server has keys.
    Needs(Scope),
}
