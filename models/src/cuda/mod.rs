//! The decoder on an NVIDIA card.
//!
//! What is arithmetic on the host is always compiled and tested: kernels' sources and what they must compute
//! ([`kernel`]), the plan of a card's memory ([`plan`]), how a step is laid out ([`image`]), which batch sizes have a
//! graph of their own ([`bucket`], [`reach`]) and what becomes of those that cannot ([`graphs`]), how long a card is waited for
//! ([`patience`]), how an adapter is learnt ([`learner`]). What talks to a driver needs the feature `cuda`; driver, cuBLAS and
//! NVRTC are loaded when a decoder is, so that one program serves machines with a card and without.

pub mod bucket;
mod checkpoint;
#[cfg(feature = "cuda")]
mod decoder;
#[cfg(feature = "cuda")]
mod device;
mod error;
pub mod graphs;
pub mod image;
pub mod kernel;
pub mod learner;
pub mod patience;
pub mod plan;
pub mod reach;

#[cfg(feature = "cuda")]
pub use decoder::{CudaDecoder, CudaOptions, Source};
#[cfg(feature = "cuda")]
pub use device::{Card, CardInfo, Ceilings};
pub use error::CudaError;
