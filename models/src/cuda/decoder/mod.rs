//! The decoder on a card: the same steps as [`crate::decoder::Decoder`], with weights and activations in `bf16`, sums and the
//! residual stream in `f32`.
//!
//! The step itself is always compiled, and tested on the emulator of kernels; what is a card's alone (recordings, pinned
//! memory, events) needs the feature `cuda`.

mod adapters;
#[cfg(feature = "cuda")]
mod card;
#[cfg(feature = "cuda")]
mod line;
mod machine;
mod pass;
#[cfg(test)]
mod test;

pub(in crate::cuda) use adapters::adapter_bytes;
#[cfg(feature = "cuda")]
pub use card::{CudaDecoder, CudaOptions};
