//! The numeric heart: a thread team, packed weight matrices, their product with activations, and element-wise functions.
//!
//! One numerics for serving, parity, and training as it is by default: activations and sums are `f32`, weights keep the
//! compact form of the checkpoint and are turned into exactly the `f32` values its dequantisation defines, a piece at a
//! time, inside the product. An integer product with quantised activations would be faster on some machines, but it gives
//! each program that uses it (this server, a trainer, the reference) different logits; it was left out on purpose.
//!
//! One exception is asked for by name ([`Arithmetic`](arithmetic::Arithmetic)): the layers' weights in brain floats
//! ([`brain`], bf16 with sums in `f32`), which halves the time of a product of many rows where the processor has the
//! instruction.

pub mod arithmetic;
pub mod attention;
pub mod brain;
pub(crate) mod derivative;
pub mod elementwise;
pub mod matmul;
pub mod packed;
pub mod rope;
pub mod team;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod block;
mod claims;
mod dot;
mod finish;
pub(crate) mod isa;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod lowrank;
pub(crate) mod panel;
mod portable;
mod prefetch;

#[cfg(test)]
mod brain_test;
#[cfg(test)]
mod matmul_test;

pub use brain::Brain;
pub use candle_core::quantized::GgmlDType as GgmlKind;
pub use elementwise::*;
pub use matmul::{matmul, matmul_add, matmul_map};
pub use packed::Packed;
pub use team::Team;
