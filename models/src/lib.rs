//! Weights in, logits out: what Waymark needs of a language model and of an embedder.
//!
//! On the CPU everything is computed in `f32`, unless products of the layers are asked for in `bf16` ([`Arithmetic`]);
//! weights stay in memory in the form the checkpoint has them in and are unpacked panel by panel inside the matrix
//! product, so that serving, training and parity tests share one numerics.

pub mod adapter;
pub mod batch;
pub mod catalog;
pub mod chat;
pub mod checkpoint;
pub mod cuda;
pub mod decoder;
pub mod embedder;
pub mod error;
pub mod folder;
pub mod gradient;
pub mod grammar;
pub mod kernel;
pub mod pull;
pub mod sampler;
pub mod tokenizer;
pub mod weights;

pub use batch::{AdapterSlot, BLOCK, ForwardBatch, Logits, Row, Want};
pub use error::ModelError;
pub use kernel::arithmetic::Arithmetic;
