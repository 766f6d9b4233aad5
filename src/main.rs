//! The `waymark` program.

use std::process::ExitCode;

use waymark::cli::Cli;
use waymark_runtime::{confine_name_lookups, exit_code};

#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    confine_name_lookups();
    exit_code(Cli::read().run())
}
