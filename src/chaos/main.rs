//! `chaos`: a real server under everything that goes wrong, and whether it kept its promises.
//!
//! Many clients ask all at once; some of them leave, some read one byte at a time. Meanwhile adapters are replaced,
//! documents come and go, some of them poisoned, and the process gets SIGTERM and is started again. Afterwards every
//! stream must have ended by its finish, by an error it was told, or by its own client; the block accounting must have
//! added up all the time; and memory must not have grown. What is asked, and what goes wrong when, derives from a seed.

#![cfg(unix)]

mod client;
mod commit;
mod house;
mod memory;
mod plan;
mod pulse;
mod report;
mod restart;
mod run;
mod server;
mod swap;
mod tally;
mod tether;
mod wire;

use std::process::ExitCode;

use clap::Parser;
use waymark::cli::{Cli, end};

/// That of `waymark`, for it is measured here.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The server under test is this same program, so that one build is enough.
    if std::env::args_os().nth(1).is_some_and(|word| word == "serve") {
        return end(tether::tie().map_err(Into::into).and_then(|()| Cli::parse().run()));
    }
    end(plan::Plan::parse().run())
}
