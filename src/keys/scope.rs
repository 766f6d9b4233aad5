//! Scopes of API keys.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Scope of an API key. No scope includes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Permission to ask and search: all routes that answer from the loaded policies and index.
    Infer,
    /// Permission to read and change the documents of the index.
    Index,
    /// Permission to create and revoke API keys of any scope, to load and unload policies, and to inspect the server.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 3] = [Scope::Infer, Scope::Index, Scope::Admin];

    /// Returns the name, as key files and documents write it.
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
