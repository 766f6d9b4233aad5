//! Trainer for agentic RAG policies. Rollouts run in the loop that serves a policy: the same engine, agent, index and
//! parser.
//!
//! | module | contents |
//! |---|---|
//! | [`advantage`], [`policy_loss`], [`schedule`] | parts of a policy update |
//! | [`cli`] | commands of the `train` program |
//! | [`data`] | generated trajectories for the cold start |
//! | [`dpo`] | training on preference pairs (DPO) |
//! | [`experiment`] | experiments: arms, seeds, endpoints, reports |
//! | [`grpo`] | training on rewards (GRPO) |
//! | [`hash`] | hashes that are the same on every machine |
//! | [`sample_filter`] | selection of a policy's own rollouts for supervised training |
//! | [`ledger`] | state of a running training run: metrics, checkpoints, time |
//! | [`lessons`] | lesson builder for `train data`: data set and Wikipedia patterns |
//! | [`logprobs`] | log-probabilities of tokens under the learner |
//! | [`mode_table`] | success of the modes of search by kind of question |
//! | [`optimizer`] | AdamW and gradient clipping |
//! | [`seeding`] | seeds and shuffles |
//! | [`pack`] | prefix-sharing packs of several trajectories in one pass |
//! | [`policy_writer`] | the policy directory that training writes |
//! | [`recipe`] | TOML description of a training run |
//! | [`reward`] | reward functions |
//! | [`rollout`] | episodes played by the current policy |
//! | [`run`] | the directory of a run: metrics, events, report, checkpoints |
//! | [`sample`], [`sample_lines`], [`sample_file`] | stored trajectories and their files |
//! | [`sft`] | supervised training on given trajectories |
//! | [`traps`] | cheap bad behaviors that a reward must not pay for |

pub mod advantage;
mod branching;
pub mod cli;
pub mod data;
pub mod decline_writer;
pub mod dpo;
mod error;
pub mod experiment;
pub mod grpo;
pub mod hash;
pub mod ledger;
pub mod lessons;
pub mod logprobs;
pub mod mode_table;
pub mod optimizer;
pub mod pack;
pub mod policy_loss;
pub mod policy_writer;
mod question_file;
pub mod recipe;
pub mod reward;
pub mod rollout;
mod rollout_metrics;
pub mod run;
pub mod sample;
pub mod sample_file;
pub mod sample_filter;
pub mod sample_lines;
pub mod schedule;
pub mod seeding;
pub mod sft;
pub mod traps;

pub use error::TrainError;

#[cfg(test)]
#[path = "../../tests/outside/mod.rs"]
mod outside;
#[cfg(test)]
mod tiny;
