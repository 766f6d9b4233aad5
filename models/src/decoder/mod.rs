//! One configured decoder for Llama, Qwen2 and Qwen3.

mod config;

pub use config::{DecoderConfig, RopeScaling};
