//! `chaos`: runs a real server under random faults and checks its guarantees.
//!
//! Many concurrent clients send requests; some disconnect, some read one byte at a time. Meanwhile adapters are
//! replaced, documents are added and removed, some of them poisoned, and the process gets SIGTERM and is restarted.
//! Every stream must end with its finish, with an error event, or by its own client; the block accounting must always
//! balance; and memory must not grow. Requests and faults derive from a seed.

#![cfg(unix)]

mod client;
mod http_client;
mod index_changes;
mod memory;
mod parent_watch;
mod plan;
mod policy_swap;
mod report;
mod restart;
mod run;
mod run_shared;
mod server;
mod server_files;
mod tally;

use std::process::ExitCode;

use clap::Parser;
use waymark::cli::Cli;
use waymark_runtime::exit_code;

/// The allocator of `waymark`, whose memory is measured here.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The server under test is this same program, so that one build is enough.
    if std::env::args_os().nth(1).is_some_and(|word| word == "serve") {
        return exit_code(parent_watch::exit_with_parent().map_err(Into::into).and_then(|()| Cli::parse().run()));
    }
    exit_code(plan::ChaosPlan::parse().run())
}
