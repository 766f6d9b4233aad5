//! The decoder on an NVIDIA card.
//!
//! What does not talk to a card itself is always compiled and tested: kernels' sources and what they must compute
//! ([`kernel`]), the plan of a card's memory ([`plan`]), how a step is laid out ([`image`]) and what it puts in line, which batch
//! sizes have a graph of their own ([`bucket`], [`reach`]) and what becomes of those that cannot ([`graphs`]), how long a card is
//! waited for ([`patience`]), where a step's time goes ([`profile`]), how an adapter is learnt ([`learner`]). Steps and learning ask a [`Driver`](driver::Driver), behind
//! which is a card or, in tests, an emulator of kernels. What talks to a card needs the feature `cuda`; driver, cuBLAS and NVRTC
//! are loaded when a decoder is, so that one program serves machines with a card and without.

pub mod bucket;
mod checkpoint;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "run by tests alone; what serves is a card's"))]
mod decoder;
#[cfg(feature = "cuda")]
mod device;
pub mod driver;
mod error;
pub mod graphs;
pub mod image;
pub mod kernel;
pub mod learner;
pub mod patience;
pub mod plan;
pub mod profile;
pub mod reach;
mod source;
#[cfg(test)]
mod toy;

#[cfg(feature = "cuda")]
pub use decoder::{CudaDecoder, CudaOptions, CudaProfiler};
#[cfg(feature = "cuda")]
pub use device::{Card, CardInfo, Ceilings};
pub use error::CudaError;
pub use source::Source;
