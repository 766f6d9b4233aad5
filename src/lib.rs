//! Waymark: an inference server for trained agentic RAG policies.

pub mod agent;
pub mod api;
pub mod cli;
pub mod config;
pub mod engine;
pub mod evaluate;
pub mod metric;
pub mod remote;
mod schema;
pub mod server;
