//! Waymark: an inference server for trained agentic RAG policies.

pub mod api;
pub mod cli;
pub mod config;
pub mod keys;
pub mod server;
pub mod store;
