//! API keys: their secrets, scopes and limits, and the file they are kept in.
//!
//! | file | content |
//! |---|---|
//! | `key_id`, `scope`, `index_scope` | names and scopes of keys, and the indexes that they may use |
//! | `owner` | identity of a key as the owner of stored objects |
//! | `secret` | a key in plain text, and its stored digest |
//! | `entry` | a key with its limits, as files and the state store it |
//! | `store`, `file` | the known keys, and the file they are loaded from |
//! | `addition`, `revocation` | adding a key to a file, and removing one from it |
//! | `record` | keys as the server's state holds them |
//! | `meter` | rate and concurrency limits |
//! | `priority` | priorities of keys and requests |
//!
//! Both the configuration and the HTTP interface build on this module, which knows neither.

mod addition;
mod entry;
mod file;
mod index_scope;
mod key_id;
mod meter;
mod owner;
mod priority;
mod record;
mod revocation;
mod scope;
mod secret;
mod store;

pub use addition::{AddError, add_key};
pub use entry::KeyEntry;
pub use file::FileError;
pub use index_scope::{IndexScope, IndexScopeError};
pub use key_id::KeyId;
pub use meter::KeyLimits;
pub use owner::KeyOwner;
pub use priority::RequestPriority;
pub use revocation::{RevokeError, read_keys, revoke_key};
pub use scope::Scope;
pub use secret::{Digest, Secret, SecretError};
pub use store::{ApiKeys, KeySource, KeysError, Reloaded};

pub(crate) use meter::{Admitted, Meter, Refused};
pub(crate) use record::KeyRecord;
pub(crate) use store::KnownKey;
