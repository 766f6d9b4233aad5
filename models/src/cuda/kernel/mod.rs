//! Kernels for NVIDIA cards: their sources, how they are launched, and what they must compute.
//!
//! The sources are CUDA C++ under `cu/`, one file per kernel family, without a single `#include`, so that NVRTC needs no
//! toolkit beside it: [`source::module`] puts them together into one translation unit for one head width. Each kernel
//! has a struct here that names its buffers and sizes and whose `launch` checks the sizes against the buffers and sets
//! the grid; where it is launched is behind [`Launch`], which a card fills, and in tests an emulator that runs the same
//! sources on the processor (`emulator`). [`mod@reference`] says in `f64` what each must compute, and [`mod@check`]
//! compares the two on whatever launcher it is given.
//!
//! # Rules that hold for all of them
//!
//! * **Nothing of a step is baked in.** Grids are sized by bucket; lengths, positions, tables, adapters and sampling
//!   settings are read from device memory, so a launch captured into a CUDA graph stays right. Padding says so in memory
//!   as well: a token of row [`NONE`], a row of context 0, a tile of row or adapter `NONE`, a sampling row of kind 0.
//! * **Types.** Activations and KV are `bf16`, sums `f32`. The residual stream is `f32`: the products of the output and
//!   down projections may add to it in place (cuBLAS, `f32` C with beta 1), and its rounding does not grow with the depth.
//!   Logits are `f32`.
//! * **Deterministic.** No floating-point atomics: sums have one order, given by the launch alone.
//! * **Rows are independent.** Nothing a row computes reads another row's values.
//!
//! # The cache
//!
//! One layer's blocks are `[block][kv head][keys, then values]`, both 16 tokens wide ([`layout`]). Keys lie as they are,
//! `[token][dim]`. Values lie in the order in which the lanes of a warp need them for `mma.sync.m16n8k16`, so that both
//! are read straight into registers, sixteen bytes per lane, without shared memory: see `cu/attention.cu`.

mod activation;
mod attention;
mod attention_backward;
mod batch;
pub mod check;
mod convert;
mod embed;
#[cfg(test)]
pub(in crate::cuda) mod emulator;
mod gradient;
mod launch;
pub mod layout;
mod lora;
mod norm;
pub mod reference;
mod rotary;
mod sample;
mod score;
pub mod source;
#[cfg(test)]
mod test;

pub use activation::SiluMul;
pub use attention::{AttendDecode, AttendPrefill, prefill_tiles};
pub use attention_backward::AttendBackward;
pub use batch::{BatchView, NONE};
pub use convert::{Narrow, Widen};
pub use embed::Embed;
pub use gradient::{NormBackward, RotaryBackward, SiluMulBackward};
pub use launch::{Geometry, Kernel, KernelError, Launch, Span};
pub use lora::{Factors, LoraExpand, LoraOut, LoraShrink, LoraTile, lora_tiles};
pub use norm::Norm;
pub use rotary::Rotary;
pub use sample::{Sample, SampleRow, Status};
pub use score::{SCORES, Score, ScoreBackward};
