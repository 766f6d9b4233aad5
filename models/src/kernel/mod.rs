//! Numeric kernels: a thread team, packed weight matrices, matrix multiplication and element-wise functions.
//!
//! Serving, parity tests and training share the same numerics by default: activations and sums are `f32`; weights keep
//! the compact form of the checkpoint and are unpacked inside the multiplication, piece by piece, into exactly the
//! `f32` values that their dequantization defines.
//!
//! Three exceptions must be requested. [`Arithmetic`](arithmetic::Arithmetic) names two: the layers' weights in
//! bf16 with sums in `f32` ([`bf16_matrix`]), which halves the time of multiplications with many rows on CPUs with the
//! instruction for pairs and takes a fifth of it with the tiles of AMX (`amx`), and activations in 16-bit integers over
//! quantized weights (`quant`). The third one is for embedding tens of thousands of texts: weights and activations in
//! bytes (`bytes`).

pub mod arithmetic;
pub mod attention;
pub mod bf16_matrix;
pub(crate) mod derivative;
pub mod elementwise;
pub mod matmul;
pub mod packed;
pub mod rope;
pub mod team;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
mod backward_matmul;
pub(crate) mod bf16_dot;
pub(crate) mod block;
mod byte_dot;
mod bytes;
pub(crate) mod directed;
mod ggml_kind;
pub(crate) mod hadamard;
mod int_lanes;
pub(crate) mod isa;
mod item_claims;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod lowrank;
mod matmul_output;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod panel;
mod portable;
mod prefetch;
mod quant;
#[cfg(any(test, target_arch = "aarch64", target_arch = "x86_64"))]
mod same_lanes;
pub(crate) mod term_tile;
pub(crate) mod transpose;
pub(crate) mod two_way;
mod weight_block;
#[cfg(target_arch = "x86_64")]
mod with_rows;
pub(crate) mod worker_memory;

#[cfg(test)]
mod bf16_test;
#[cfg(test)]
mod byte_test;
#[cfg(test)]
mod matmul_test;

pub use bf16_dot::computes_bf16;
pub use bf16_matrix::Bf16Matrix;
pub(crate) use byte_dot::ByteSupport;
pub(crate) use bytes::{ByteFinish, ByteLinear};
pub use elementwise::*;
pub use ggml_kind::GgmlKind;
pub use isa::instruction_set;
pub use matmul::{matmul, matmul_add, matmul_map};
pub use packed::Packed;
pub use team::Team;
