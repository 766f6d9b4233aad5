//! The trainer: policies learn the loop they are served in, by the same engine, agent, index and parser.
//!
//! | module | what it holds |
//! |---|---|
//! | [`advantage`], [`policy_loss`], [`schedule`] | what a policy update is made of |
//! | [`cli`] | the commands |
//! | [`data`] | trajectories for the cold start |
//! | [`dpo`] | learning from preferences |
//! | [`grpo`] | learning from rewards |
//! | [`hash`] | hashes that are the same on every machine |
//! | [`keep`] | trajectories of its own that a policy can imitate |
//! | [`ledger`] | a run while it goes on: numbers, checkpoints, time |
//! | [`optimizer`] | AdamW and gradient clipping |
//! | [`order`] | seeds and shuffles |
//! | [`pack`] | trajectories side by side in one pass |
//! | [`product`] | the policy that training makes |
//! | [`recipe`] | what a policy is trained by |
//! | [`reward`] | what trajectories are worth |
//! | [`rollout`] | questions answered by the policy as it is |
//! | [`run`] | the directory of a run: metrics, events, report, checkpoints |
//! | [`sample`], [`store`], [`shelf`] | trajectories as they are kept, and where |
//! | [`sft`] | learning from given trajectories |

pub mod advantage;
pub mod cli;
pub mod data;
pub mod dpo;
mod error;
pub mod grpo;
pub mod hash;
pub mod keep;
pub mod ledger;
mod numbers;
pub mod optimizer;
pub mod order;
pub mod pack;
pub mod policy_loss;
pub mod product;
pub mod recipe;
pub mod reward;
pub mod rollout;
pub mod run;
pub mod sample;
pub mod schedule;
pub mod sft;
pub mod shelf;
pub mod store;

pub use error::TrainError;

#[cfg(test)]
#[path = "../../tests/outside/mod.rs"]
mod outside;
#[cfg(test)]
mod tiny;
