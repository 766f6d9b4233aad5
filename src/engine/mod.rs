//! Continuous batching over paged KV: sessions in, tokens out. Nothing here knows text, JSON or retrieval.
//!
//! One thread owns the [`Backend`] and all KV accounting; [`Engine`] and [`Session`] are handles to it. A session is a
//! growing sequence of token ids: [`Session::append`] adds given ones, [`Session::generate`] samples more. Between
//! turns it is *parked*: out of the batch, its blocks kept, so that nothing is computed twice.
//!
//! | file | what it holds |
//! |---|---|
//! | `handle`, `lease`, `session`, `turn`, `worker` | the handles, and the thread behind them |
//! | `mailbox` | bounded delivery of tokens to a reader who may be slow or gone |
//! | `core`, `schedule`, `step`, `draw`, `commit` | the synchronous heart: commands, plan, forward pass, sampling |
//! | `sequence`, `pool`, `lru`, `prefix` | who owns which block, and what may be shared |
//! | `stop` | where a turn ends |
//! | `constraint`, `masking` | which tokens a turn may hold, found beside the steps |
//! | `backend`, `cpu`, `cuda`, `mock` | what computes the logits |
//! | `weights` | other weights for an engine that rests: what a trainer has made of them |
//! | `counters`, `histogram`, `health`, `snapshot`, `stage` | what can be seen from outside |

mod backend;
mod command;
mod commit;
mod config;
mod constraint;
mod core;
mod counters;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod draw;
mod error;
mod handle;
mod health;
mod histogram;
mod lease;
mod lru;
mod mailbox;
mod masking;
pub mod mock;
mod pool;
mod prefix;
#[cfg(test)]
mod property;
mod request;
mod schedule;
mod sequence;
mod session;
mod snapshot;
mod stage;
mod step;
mod stop;
mod token;
mod turn;
mod weights;
mod worker;

pub use backend::{Backend, BackendError, BackendSpec, Footprint, Output};
pub use config::EngineConfig;
pub use constraint::{Constraint, Follow};
pub use counters::{Counter, Counters, Gauge};
pub use cpu::{CpuBackend, KvBudget};
#[cfg(feature = "cuda")]
pub use cuda::CudaBackend;
pub use error::EngineError;
pub use handle::Engine;
pub use health::Health;
pub use histogram::{Histogram, HistogramSnapshot};
pub use lease::Lease;
pub use mock::MockBackend;
pub use request::{Adapter, Generate, RequestId, SessionOptions};
pub use session::Session;
pub use snapshot::{AdapterSnapshot, BlockSnapshot, EngineSnapshot, SessionSnapshot, SessionState};
pub(crate) use stop::{Label, Stop};
pub use stop::{Matcher, StopSet};
pub use token::{Finish, Origin, Step, Token};
pub use turn::Turn;
pub(crate) use worker::message;
