//! Fuzz targets, one file each, with a `run` that takes any bytes and panics if a promise is broken.
//!
//! The programs in `fuzz_targets` run these functions with libFuzzer. `tests/fuzz` of the main workspace runs them with
//! the seeds, with inputs that failed before, and with random changes of both, on the stable toolchain.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc, missing_docs, unreachable_pub)]

pub mod checkpoint;
pub mod corpus;
pub mod embedder;
mod file;
pub mod gguf;
pub mod index;
pub mod openie;
pub mod protocol;
mod reply;
pub mod request;
pub mod responses;
pub mod safetensors;
mod sse;
pub mod stream;
pub mod template;
mod test_app;
pub mod tokenizer;

/// Function that takes any bytes and panics if a promise is broken.
pub type Target = fn(&[u8]);

/// Every target with its name, which is also that of its folder of seeds.
pub const TARGETS: &[(&str, Target)] = &[
    ("checkpoint", checkpoint::run),
    ("corpus", corpus::run),
    ("embedder", embedder::run),
    ("gguf", gguf::run),
    ("index", index::run),
    ("openie", openie::run),
    ("protocol", protocol::run),
    ("request", request::run),
    ("responses", responses::run),
    ("safetensors", safetensors::run),
    ("stream", stream::run),
    ("template", template::run),
    ("tokenizer", tokenizer::run),
];
