//! The interface over the wire: a real server on a free port, a mock backend behind it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod drain;
mod golden;
mod gone;
mod house;
mod load;
mod openapi;
mod refusals;
mod routes;
