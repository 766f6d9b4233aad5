//! `waymark pull`: weights into the cache.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;
use waymark_models::pull::{self, Progress, PullOptions};

use super::triples::variable;
use super::{cache, logging, progress};
use crate::config::LogFormat;

/// Fetches weights, checks them, and prints where they are.
///
/// Files of the catalog are checked against its SHA-256, large ones of the model hub against what the hub says of them; of small
/// ones it says nothing.
///
/// A download that was broken off goes on where it stopped; one that is there already is not fetched again. As with other
/// programs, `HF_TOKEN` holds the token that some repositories of the model hub want, and `HF_ENDPOINT` the address of a
/// mirror; every command that fetches weights goes by them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark pull smollm2-135m-instruct
  waymark pull org/name                           a repository of the model hub
  waymark pull ./model.gguf                       checks that it is there")]
pub(crate) struct Args {
    /// A name in the catalog, a hub id, or a path.
    name: String,

    /// Where downloaded weights are kept; the user's cache directory when not given.
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

/// What `spec` names, on this machine.
pub(crate) fn fetch(spec: &str, cache: &Path) -> anyhow::Result<PathBuf> {
    let options = PullOptions { hub: variable("HF_ENDPOINT"), token: variable("HF_TOKEN"), ..PullOptions::default() };
    Ok(tokio::task::block_in_place(|| pull::pull_with(spec, cache, &options, &Bar::default()))?)
}

/// A bar that appears with the first byte.
#[derive(Debug, Default)]
struct Bar(Mutex<Option<ProgressBar>>);

impl Progress for Bar {
    fn update(&self, message: &str, done: u64, total: Option<u64>) {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = shown.get_or_insert_with(progress::bytes);
        bar.set_message(message.to_owned());
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(done);
    }
}
