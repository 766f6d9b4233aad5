//! The decoder on a card: the same steps as [`crate::decoder::Decoder`], with weights and activations in `bf16`, sums and the
//! residual stream in `f32`.
//!
//! The step itself is always compiled, and tested on the emulator of kernels; what is a card's alone (recordings, pinned
//! memory, events) needs the feature `cuda`. What a step's time goes to is found by a [`Profiler`](profiler::Profiler), which
//! runs the same steps.

mod adapters;
#[cfg(feature = "cuda")]
mod card;
#[cfg(feature = "cuda")]
mod line;
mod machine;
mod pass;
mod profiler;
#[cfg(test)]
mod test;

pub(in crate::cuda) use adapters::adapter_bytes;
#[cfg(feature = "cuda")]
pub use card::{CudaDecoder, CudaOptions};
#[cfg(feature = "cuda")]
pub use profiler::CudaProfiler;
