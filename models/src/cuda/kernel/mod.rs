//! CUDA kernels: their sources, their launches, and their reference implementations.
//!
//! The sources are CUDA C++ under `cu/`, one file per kernel family. They contain no `#include`, so NVRTC needs no CUDA
//! toolkit: [`source::module`] concatenates them into one translation unit per head width. Each kernel has a struct
//! here that names its buffers and sizes; its `launch` checks the sizes against the buffers and sets the grid. Kernels
//! are launched through [`Launch`], implemented by a GPU and, in tests, by an emulator that runs the same sources on
//! the CPU (`emulator`). [`mod@reference`] implements each kernel in `f64`, and [`mod@check`] compares kernels with
//! their references on any launcher.
//!
//! # Rules for all kernels
//!
//! * **A launch depends only on the size of a step.** Grids are sized by bucket; lengths, positions, tables, adapters
//!   and sampling settings are read from device memory, so a launch captured into a CUDA graph stays valid. Padding
//!   is marked in memory too: a token of row [`NONE`], a row of context 0, a tile of row or adapter `NONE`, a
//!   sampling row of kind 0.
//! * **Types.** Activations and KV are `bf16`, sums `f32`. The residual stream is `f32`: the matrix multiplications
//!   of the output and down projections add to it in place ([`SkinnyMatMul`], or cuBLAS with `f32` C and beta 1), and
//!   its rounding error does not grow with depth. Logits are `f32`.
//! * **Deterministic.** No floating-point atomics: the order of summation depends on the launch alone.
//! * **Rows are independent.** No row's result depends on another row's values.
//! * **Launches overlap.** From compute capability 9.0 on, blocks may start while the launch before still runs. Every
//!   thread calls `after_previous` first; before it, a kernel may read only what nothing writes, such as weights.
//!
//! # KV cache
//!
//! One layer's blocks are `[block][kv head][keys, then values]`, both 16 tokens wide ([`layout`]). Keys are stored as
//! `[token][dim]`. Values are stored in the order in which the lanes of a warp need them for `mma.sync.m16n8k16`, so
//! both are read sixteen bytes per lane, without a transposition: see `cu/attention.cu`.

mod activation;
mod attention;
mod attention_backward;
mod batch;
pub mod check;
mod convert;
mod embed;
#[cfg(test)]
pub(in crate::cuda) mod emulator;
pub mod fp8;
mod gradient;
mod launch;
pub mod layout;
mod lora;
mod norm;
mod quantize;
pub mod reference;
mod rotary;
mod sample;
mod score;
mod skinny;
pub mod source;
#[cfg(test)]
mod test;
#[cfg(test)]
mod test_sizes;

pub use activation::SiluMul;
pub use attention::{AttendDecode, AttendPrefill, prefill_tiles};
pub use attention_backward::AttendBackward;
pub use batch::{BatchBounds, BatchView, NONE, RowIndex};
pub use convert::{NarrowToBf16, WidenToF32};
pub use embed::EmbedTokens;
pub use fp8::DequantizeFp8;
pub use gradient::{RmsNormBackward, RotaryBackward, SiluMulBackward};
pub use launch::{CudaKernel, DeviceSlice, Geometry, KernelError, Launch};
pub use lora::{LoraExpand, LoraFactors, LoraOut, LoraShrink, LoraTile, lora_tiles};
pub use norm::RmsNorm;
pub use quantize::QuantizeFp8;
pub use rotary::Rotary;
pub use sample::{Adjustment, SampleKind, SampleRow, SampleStatus, SampleTokens};
pub use score::{SCORES, ScoreTargets, ScoreTargetsBackward};
pub use skinny::{SKINNY_FP8_ROWS, SKINNY_ROWS, SkinnyMatMul, SkinnyTarget, SkinnyWeights};
