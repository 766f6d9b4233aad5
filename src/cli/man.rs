//! `waymark man`: manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;

use super::Cli;

/// Prints the manual page, or writes one for every command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark man | man -l -
  waymark man --out ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Folder to write the pages of all commands to, such as `waymark-serve.1`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Some(dir) = self.out else {
            let mut page = Vec::new();
            Man::new(Cli::command()).render(&mut page)?;
            io::stdout().write_all(&page)?;
            return Ok(());
        };
        let about = || format!("cannot write the manual pages to {}", dir.display());
        fs::create_dir_all(&dir).with_context(about)?;
        clap_mangen::generate_to(Cli::command(), &dir).with_context(about)
    }
}
