//! Decoder on a GPU: the steps of [`crate::decoder::Decoder`] with weights in `bf16` or `e4m3`, activations in `bf16`
//! (rounded to `e4m3` for products of many rows with such weights), sums and the residual stream in `f32`.
//!
//! The step is always compiled, and tested on the kernel emulator. The GPU-only parts (graphs, pinned memory, events)
//! need the feature `cuda`. A [`Profiler`](profiler::Profiler) runs the same steps to measure where their time goes.

mod adapters;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod graph_step;
mod matmul;
mod pass;
mod profiler;
mod runner;
#[cfg(test)]
mod test;
#[cfg(any(feature = "cuda", test))]
mod tuning;

pub(in crate::cuda) use adapters::adapter_bytes;
#[cfg(feature = "cuda")]
pub use gpu::{CudaDecoder, CudaOptions};
#[cfg(feature = "cuda")]
pub use profiler::CudaProfiler;
