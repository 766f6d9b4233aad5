//! The `waymark` program.

use std::process::ExitCode;

use waymark::cli::{Cli, end};

#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    end(Cli::read().run())
}
