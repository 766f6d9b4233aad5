//! Learning: the decoder's forward pass with everything its backward pass needs, and the backward pass.
//!
//! Frozen weights get no gradient. They stay in the form the checkpoint has them in, where the product knows that,
//! beside their transposes in `f32`; those of the layers may be brain floats instead, with their transposes
//! ([`Arithmetic`](crate::Arithmetic)). What is tuned ([`Tune`]) is a LoRA adapter or all weights, in `f32`. Sequences
//! are packed without padding, a shared prefix is computed once ([`Pack`]), and the vocabulary's part of the loss runs
//! in chunks over the targets alone ([`Objective`]). What a model finds the most probable ([`Likeliest`]) another one can be
//! drawn to ([`Pull`]).
//!
//! What is here computes on the processor. A card's learner ([`cuda::learner`](crate::cuda::learner)) stands behind the same
//! [`Learner`], with weights in `bf16` and an adapter in `f32`.

pub mod attention;
mod begin;
mod compute;
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
mod processor;
mod projection;
mod rotation;
mod tape;
mod tune;
mod unembedding;
pub mod vocabulary;
mod whole;

pub(crate) use begin::{Pairs, adapter};
pub(crate) use compute::Compute;
pub use learner::Learner;
pub use likeliest::Likeliest;
pub use objective::{Objective, Pull, Score, Slope};
pub use pack::{Pack, Segment, Target};
pub use parameter::Parameter;
pub use peft::Precision;
pub use tune::{Lora, Module, Tune};
