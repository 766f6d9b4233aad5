//! `waymark openapi`: prints the description of the HTTP interface.

use std::io::{self, Write};

use crate::api;

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
        let text = if self.json {
            serde_json::to_string_pretty(&api::document())?
        } else {
            api::document_yaml().map_err(anyhow::Error::from_boxed)?
        };
        io::stdout().write_all(text.as_bytes())?;
        Ok(())
    }
}
