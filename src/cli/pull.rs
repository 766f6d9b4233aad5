//! `waymark pull`: downloads weights into the cache.

use std::io::{self, Write};
use std::path::PathBuf;

use waymark_runtime::config::LogFormat;
use waymark_runtime::pull::fetch;
use waymark_runtime::{cache, logging};

/// Downloads weights, verifies them, and prints their path.
///
/// Files of the catalog are verified against its SHA-256, large files of the model hub against the hash that the hub
/// publishes; it publishes none for small files.
///
/// An interrupted download resumes where it stopped; existing files are not fetched again. `HF_TOKEN` holds the token
/// that gated repositories of the model hub require, and `HF_ENDPOINT` the address of a mirror; every command that
/// downloads weights uses both.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark pull smollm2-135m-instruct
  waymark pull org/name                           a repository of the model hub
  waymark pull ./model.gguf                       checks that it is there")]
pub(crate) struct Args {
    /// Name in the catalog, hub ID, or path.
    name: String,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        let path = fetch(&self.name, &cache::folder(self.cache)?)?;
        writeln!(io::stdout(), "{}", path.display())?;
        Ok(())
    }
}
