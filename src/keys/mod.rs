//! API keys: their secrets, scopes and limits, and the file they are kept in.
//!
//! | file | content |
//! |---|---|
//! | `key_id`, `scope` | names and scopes of keys |
//! | `owner` | identity of a key as the owner of stored objects |
//! | `secret` | a key in plain text, and its stored digest |
//! | `store`, `file` | the known keys, and the file they are loaded from |
//! | `meter` | rate and concurrency limits |
//! | `priority` | priorities of keys and requests |
//!
//! Both the configuration and the HTTP interface build on this module, which knows neither.

mod file;
mod key_id;
mod meter;
mod owner;
mod priority;
mod scope;
mod secret;
mod store;

pub use file::FileError;
pub use key_id::KeyId;
pub use meter::KeyLimits;
pub use owner::KeyOwner;
pub use priority::RequestPriority;
pub use scope::Scope;
pub use secret::{Digest, Secret, SecretError};
pub use store::{ApiKeys, KeyEntry, KeysError, Reloaded};

pub(crate) use meter::{Admitted, Meter, Refused};
pub(crate) use store::KnownKey;
