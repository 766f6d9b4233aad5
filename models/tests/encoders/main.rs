//! Embedders of every family over small pseudo-random weights (`scripts/parity/encoders.py`), in the directories that
//! sentence-transformers saves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixture;
mod parity;
mod settings;
