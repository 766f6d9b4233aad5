//! Continuous batching over a paged KV cache: sessions in, tokens out. The crate knows neither text nor JSON nor
//! retrieval.
//!
//! One thread owns the [`Backend`] and the KV accounting; [`Engine`] and [`Session`] are handles to it. A session is a
//! growing sequence of token ids: [`Session::append`] appends given ones, [`Session::generate`] samples more. Between
//! turns a session is *parked*: it is outside the batch and keeps its blocks until other sessions need them, so
//! its tokens need not be computed again.
//!
//! | modules | content |
//! |---|---|
//! | `handle`, `lease`, `session`, `turn`, `worker` | the handles, and the thread behind them |
//! | `mailbox` | bounded delivery of tokens to a reader that may be slow or gone |
//! | `core`, `adapter_table` | the synchronous core: commands, loaded adapters |
//! | `step_loop`, `pass_runner`, `draw`, `delivery` | a step: forward pass, sampling, delivery, recovery |
//! | `scheduler`, `running_turn` | sessions, queues and the plan of a step |
//! | `sequence`, `pool`, `lru`, `prefix` | ownership of KV blocks, and the prefix cache |
//! | `lookup` | tokens that may come next, proposed from the sequence itself |
//! | `stop` | stop strings and stop lines |
//! | `constraint`, `masking` | token masks of constrained turns, computed on separate threads |
//! | `backend`, `cpu`, `cuda`, `mock` | computation of logits |
//! | `counters`, `histogram`, `health`, `snapshot`, `stage` | metrics, health, snapshots and traces |

mod adapter_table;
mod backend;
mod command;
mod config;
mod constraint;
mod core;
mod counters;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod delivery;
mod draw;
mod error;
#[cfg(test)]
mod exactness;
mod handle;
#[cfg(test)]
mod harness;
mod health;
mod histogram;
mod lease;
mod lookup;
mod lru;
mod mailbox;
mod masking;
pub mod mock;
mod pass_runner;
mod pool;
mod prefix;
#[cfg(test)]
mod property;
mod request;
mod running_turn;
mod scheduler;
mod sequence;
mod session;
mod snapshot;
mod stage;
mod step_loop;
mod stop;
mod token;
mod turn;
mod worker;

pub use backend::{Backend, BackendError, BackendSpec, Footprint, PassOutput, RecordedSteps};
pub use config::EngineConfig;
pub use constraint::{Constraint, ConstraintState};
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
pub use request::{Generate, LoadedAdapter, Priority, RequestId, SessionOptions};
pub use session::Session;
pub use snapshot::{AdapterSnapshot, BlockSnapshot, EngineSnapshot, SessionSnapshot, SessionState};
pub use stop::{LineLabel, StopString};
pub use stop::{Matcher, StopSet};
pub use token::{Origin, Token, TokenStep, TurnFinish};
pub use turn::Turn;
pub use worker::panic_message;
