//! Tests of the HTTP interface: a real server on a free port, with a mock backend.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations
)]

mod absence;
mod answers;
mod auth;
mod bytes;
mod citations;
mod commits;
mod completions;
mod conformance;
mod containment;
mod conversations;
mod cors;
mod cost;
mod counterfactual;
mod debug;
mod disconnects;
mod documents;
mod drain;
mod encoding;
mod evo_rag;
mod explore;
mod fairness;
mod faulty_fields;
mod fleet;
mod generate;
mod golden;
mod harness;
mod history;
mod hosts;
mod index_scopes;
mod indexes;
mod kept_connections;
mod limits;
mod load;
mod load_numbers;
mod mcp;
mod metrics;
mod openapi;
mod playground;
mod policies;
mod postgres;
#[path = "../postgres_server/mod.rs"]
mod postgres_server;
mod protocols;
mod refusals;
mod reliability;
mod replay;
mod rerank;
mod responses;
mod resume;
mod rollouts;
mod routes;
mod schemathesis;
mod sdk;
mod shared_state;
#[path = "../skipped/mod.rs"]
mod skipped;
mod slow_clients;
mod small_index;
mod state;
mod stored_keys;
mod structured;
mod tenants;
mod tokenize;
mod tools;
mod traces;
mod trainers;
mod vector_store_batches;
mod vector_store_files;
mod vector_store_ingestion;
mod vector_store_limits;
mod vector_store_lists;
mod vector_stores;
mod vllm_options;
