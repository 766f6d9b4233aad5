//! Running parts from a configuration: models, policies, indexes, embedders, devices and the log; and the evaluation of
//! policies. The server and the trainer both build on this crate.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | flags and their meaning, one file per group |
//! | [`assembly`], [`device`], [`embedding`], [`reranking`], [`filter`], [`trained_policy`] | engines, indexes, embedders, rerankers, fact filters and policies from a configuration |
//! | [`cache`], [`pull`], [`environment`] | the download folder, weights on demand, keys and tokens from the environment |
//! | [`query_embedder`] | search queries embedded together, and a cache of their vectors |
//! | [`fleet`], [`fingerprint`] | generation on engines elsewhere; fingerprints by which weights are known there |
//! | [`trusted_roots`] | certificate authorities that the clients of this process trust |
//! | [`remote`] | language models behind OpenAI-compatible endpoints, and embedders and rerankers behind endpoints |
//! | [`snapshots`] | snapshots of indexes on an object store, and replicas that follow them |
//! | [`evaluate`] | evaluation of policies on question sets with known answers |
//! | [`logging`], [`progress`], [`printable`], [`escape_html`], [`exit_code`] | output of programs: log, progress bars, text without control characters, text in HTML, exit codes |

pub mod assembly;
pub mod cache;
pub mod config;
pub mod device;
pub mod embedding;
pub mod environment;
pub mod evaluate;
mod exit_code;
pub mod filter;
pub mod fingerprint;
pub mod fleet;
mod html;
pub mod logging;
mod machine;
mod name_service;
mod printable;
pub mod progress;
pub mod pull;
pub mod query_embedder;
pub mod remote;
pub mod reranking;
pub mod snapshots;
mod trained_policy;
pub mod trusted_roots;

pub use exit_code::{InvalidConfiguration, exit_code};
pub use html::escape_html;
pub use machine::MachineMemory;
pub use name_service::confine_name_lookups;
pub use printable::{PrintableWriter, printable};
pub use trained_policy::trained_policy;
