//! `waymark pull`: downloads weights into the cache.

use std::io::{self, Write};
use std::path::PathBuf;

use waymark_models::catalog::{Catalog, CatalogEntry, DownloadSource};
use waymark_models::pull::pinned_commit;
use waymark_runtime::config::LogFormat;
use waymark_runtime::pull::fetch;
use waymark_runtime::{cache, logging};

/// Downloads weights, verifies them, and prints their path.
///
/// Files of the catalog are verified against its SHA-256, large files of the model hub against the hash that the hub
/// publishes; it publishes none for small files. A repository whose hashes the catalog does not have is pinned to its commit
/// on first use.
///
/// An interrupted download resumes where it stopped; existing files are not fetched again. `HF_TOKEN` holds the token
/// that gated repositories of the model hub require, and `HF_ENDPOINT` the address of a mirror; every command that
/// downloads weights uses both.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark pull --list
  waymark pull smollm2-135m-instruct
  waymark pull org/name                a repository of the model hub
  waymark pull ./model.gguf            checks that it is there")]
pub(crate) struct Args {
    /// Name in the catalog, hub ID, or path.
    #[arg(required_unless_present = "list")]
    name: Option<String>,

    /// Print the names in the catalog instead.
    #[arg(long, conflicts_with = "name")]
    list: bool,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        let Some(name) = &self.name else { return list(&Catalog::bundled(), &mut io::stdout().lock()) };
        let path = fetch(name, &cache::folder(self.cache)?)?;
        if let Some(commit) = pinned_commit(&path) {
            let path = path.display();
            writeln!(io::stderr(), "pinned to the commit {commit} on first use; remove {path} to take a newer one")?;
        }
        writeln!(io::stdout(), "{}", path.display())?;
        Ok(())
    }
}

/// Prints the names in a catalog.
fn list(catalog: &Catalog, out: &mut impl Write) -> anyhow::Result<()> {
    let width = catalog.entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    for entry in &catalog.entries {
        let CatalogEntry { name, kind, about, license, .. } = entry;
        let kind = kind.to_string();
        writeln!(out, "{name:width$}  {kind:8}  {license:10}  {about} ({})", origin(entry))?;
    }
    Ok(())
}

/// Returns the repository of an entry, and how its files are verified.
fn origin(entry: &CatalogEntry) -> String {
    let hub = entry.sources.iter().find_map(|source| match source {
        DownloadSource::Hub { hub, .. } => Some(hub.as_str()),
        DownloadSource::Package { .. } => None,
    });
    let verified = if entry.unpinned().is_some() { "pinned on first use" } else { "sha256 known" };
    hub.map_or_else(|| verified.to_owned(), |hub| format!("{hub}; {verified}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_runtime::config::DEFAULT_EMBEDDER;

    use super::*;

    #[test]
    fn every_name_is_listed_with_its_license_and_origin() {
        let catalog = Catalog::bundled();
        let mut out = Vec::new();
        list(&catalog, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), catalog.entries.len());
        for (line, entry) in text.lines().zip(&catalog.entries) {
            assert!(line.starts_with(&entry.name) && line.contains(&entry.license), "{line}");
        }
        let reranker = text.lines().find(|line| line.starts_with("bge-reranker-base")).unwrap();
        assert!(reranker.contains("reranker") && reranker.contains("BAAI/bge-reranker-base; pinned on first use"));
        let default = text.lines().find(|line| line.starts_with(DEFAULT_EMBEDDER)).unwrap();
        assert!(default.contains("sha256 known"), "{default}");
    }
}
