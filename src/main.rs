//! The `waymark` program.

use std::process::ExitCode;

use waymark::cli::Cli;
use waymark_runtime::exit_code;

#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    exit_code(Cli::read().run())
}
