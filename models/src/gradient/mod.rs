//! Training: forward passes that keep their activations, and backward passes.
//!
//! Frozen weights get no gradient. They stay in the checkpoint's format where the matrix multiplication supports it,
//! together with their transposes in `f32`. The frozen weights of the layers and their transposes may use `bf16`
//! instead ([`Arithmetic`](crate::Arithmetic)). Trained parameters ([`Tune`]) are a LoRA adapter or all weights, in
//! `f32`. Sequences are packed without padding, a shared prefix is computed once ([`Pack`]), and the vocabulary part of
//! the loss runs in chunks over the targets alone ([`Objective`]). The most probable tokens of one model
//! ([`Likeliest`]) can serve as a distillation target for another ([`DistillationTerm`]).
//!
//! The passes in this module run on the CPU. The GPU learner ([`cuda::learner`](crate::cuda::learner)) implements
//! the same [`Learner`] with weights in `bf16` and an adapter in `f32`.

mod all_weights;
pub mod attention;
mod compute;
mod cpu_passes;
mod experts;
mod gate;
mod initial_values;
mod layer;
mod learner;
mod likeliest;
mod load;
mod memory;
mod network;
mod norm;
mod objective;
pub mod outer;
mod pack;
mod parameter;
mod peft;
mod projection;
mod rotation;
mod tape;
mod tune;
mod unembedding;
pub mod vocabulary;

pub(crate) use compute::Compute;
pub(crate) use initial_values::{Pairs, adapter};
pub use learner::{Learner, ScoredModel};
pub use likeliest::Likeliest;
pub use objective::{DistillationTerm, Objective, Score, Slope};
pub use pack::{Pack, PackSegment, PackTarget};
pub use parameter::Parameter;
pub use peft::Precision;
pub use tune::{Lora, Module, Tune};
