//! The decoder on this machine's processor.

/// How much memory the KV pool may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvBudget {
    /// In bytes.
    Bytes(usize),
    /// In blocks of [`waymark_models::BLOCK`] tokens.
    Blocks(usize),
}

/// A decoder and its KV cache.
#[derive(Debug)]
pub struct CpuBackend {}
