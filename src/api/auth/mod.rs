//! Who may do what: API keys, what each may do, and the door that every request comes through.
//!
//! | file | what it holds |
//! |---|---|
//! | `scope` | what a key may do, and what a route needs |
//! | `routes` | routes, each declared together with what it needs |
//! | `door` | what happens to a request before its handler |
//! | `caller` | what a handler learns of who asks |
//! | `secret` | a key as its owner has it, and as it is stored |
//! | `keys`, `file` | the keys that are known, and where they come from |
//! | `meter` | how often and how much at once |
//!
//! A route that nobody declared is closed to everybody, whether the server has keys or not.

mod caller;
mod door;
mod file;
mod keys;
mod meter;
mod routes;
mod scope;
mod secret;

pub use caller::KeyId;
pub use file::FileError;
pub use keys::{Entry, Keys, KeysError, Reloaded};
pub use meter::Limits;
pub use scope::Scope;
pub use secret::{Digest, Secret, SecretError};

pub(crate) use caller::Caller;
pub(crate) use door::{Door, open};
pub(crate) use routes::Routes;
