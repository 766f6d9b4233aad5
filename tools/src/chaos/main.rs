//! `chaos`: runs a real server under random faults and checks its guarantees.
//!
//! Many concurrent clients with several keys send requests; some disconnect, some read one byte at a time, some send
//! too many or too large requests. Meanwhile adapters are replaced, documents are added and removed, some of them
//! poisoned, bits of the index flip, its disk fills up, floods take all connections, and the process gets SIGTERM or
//! SIGKILL and is restarted. [`Invariant`](invariant::Invariant) lists the guarantees that must hold; memory must not
//! grow either. Requests and faults derive from a seed.

#![cfg(unix)]

mod bit_flip;
mod client;
mod client_keys;
mod director;
mod fair_load;
mod flood;
mod full_disk;
mod http_client;
mod index_changes;
mod invariant;
mod ledger;
mod memory;
mod oversized;
mod parent_watch;
mod plan;
mod poison;
mod policy_swap;
mod probes;
mod report;
mod restart;
mod run;
mod run_shared;
mod server;
mod server_files;
mod small_disk;
mod tally;

use std::process::ExitCode;

use clap::Parser;
use waymark::cli::Cli;
use waymark_runtime::exit_code;

/// The allocator of `waymark`, whose memory is measured here.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The server under test is this same program, so one build is enough.
    if std::env::args_os().nth(1).is_some_and(|word| word == "serve") {
        return exit_code(parent_watch::exit_with_parent().map_err(Into::into).and_then(|()| Cli::parse().run()));
    }
    exit_code(plan::ChaosPlan::parse().run())
}
