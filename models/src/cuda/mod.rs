//! Decoding and LoRA training on NVIDIA GPUs.
//!
//! Everything that does not call the driver is always compiled and tested: kernel sources and their reference
//! implementations ([`kernel`]), the memory plan ([`plan`]), the layout of a step's inputs ([`step_layout`]),
//! batch-size buckets ([`bucket`]), chosen algorithms of matrix multiplications ([`algorithms`]), grid sizes of the LoRA kernels ([`lora_grid`]), CUDA graph caching ([`graphs`]),
//! polling for completion ([`adaptive_wait`](crate::adaptive_wait)), profiling ([`profile`]) and LoRA training
//! ([`learner`]). Decoding and training are written against [`Driver`](driver::Driver), implemented by a GPU and, in
//! tests, by an emulator that runs the kernels on the CPU.
//!
//! Code that calls the driver needs the feature `cuda`. The driver, cuBLAS and NVRTC are loaded at run time, so one
//! binary serves machines with and without a GPU.

pub mod algorithms;
pub mod bucket;
mod checkpoint;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without a GPU only tests use it"))]
mod decoder;
#[cfg(feature = "cuda")]
mod device;
pub mod driver;
mod error;
pub mod graphs;
pub mod kernel;
pub mod learner;
pub mod lora_grid;
pub mod plan;
pub mod profile;
mod source;
pub mod step_layout;
mod tensor_check;
#[cfg(test)]
mod toy;

#[cfg(feature = "cuda")]
pub use decoder::{CudaDecoder, CudaOptions, CudaProfiler};
#[cfg(feature = "cuda")]
pub use device::{GemmShape, GemmTarget, Gpu, GpuInfo, PeakRates};
pub use error::CudaError;
pub use source::WeightSource;
