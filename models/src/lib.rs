//! Weights in, logits out: decoder, embedder, reranker, tokenizer and training passes of Waymark.
//!
//! On the CPU everything is computed in `f32`, unless the layers' matrix multiplications are set to `bf16`
//! ([`Arithmetic`]). Weights stay in memory in the checkpoint's format and are unpacked panel by panel inside the
//! matrix multiplication, so serving, training and parity tests share the same numerics.

pub mod adapter;
pub mod adaptive_wait;
pub mod architecture;
pub mod batch;
pub mod catalog;
pub mod chat;
pub mod checkpoint;
pub mod cuda;
pub mod decoder;
pub mod durable_file;
pub mod embedder;
mod encoder;
pub mod error;
pub mod file_lock;
pub mod folder;
pub mod gradient;
pub mod grammar;
pub mod kernel;
pub mod layout;
pub mod pull;
pub mod reranker;
pub mod sampler;
pub mod tokenizer;
pub mod weights;

pub use batch::{AdapterSlot, BLOCK, BatchRow, ForwardBatch, LogitPositions, Logits};
pub use error::ModelError;
pub use kernel::arithmetic::Arithmetic;
