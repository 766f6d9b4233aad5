//! `waymark completions`: completions for shells.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;

/// Prints a script that completes commands and flags in a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark completions bash \\
      > ~/.local/share/bash-completion/completions/waymark
  waymark completions zsh > \"${fpath[1]}/_waymark\"
  waymark completions fish > ~/.config/fish/completions/waymark.fish")]
pub(crate) struct Args {
    /// Shell to complete in.
    shell: Shell,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // In memory first, because the generator panics when standard output is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "waymark", &mut script);
        io::stdout().write_all(&script)?;
        Ok(())
    }
}
