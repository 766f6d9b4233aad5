//! `waymark openapi`: prints the description of the HTTP interface.

use std::io::{self, Write};

/// Prints the OpenAPI description of the HTTP interface.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  waymark openapi > openapi.yaml")]
pub(crate) struct Args {
    /// Print JSON instead of YAML.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let text = if self.json { crate::api::openapi::json() } else { crate::api::openapi::yaml() }?;
        io::stdout().write_all(text.as_bytes())?;
        Ok(())
    }
}
