//! `waymark index show` and `waymark index documents`: reading the documents of an index.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::bail;
use waymark_index::{Contents, Document};
use waymark_runtime::PrintableWriter;
use waymark_runtime::config::local_index;

/// Prints a document of an index.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index show docs.index --id guide.md#2")]
pub(crate) struct ShowArgs {
    /// Directory of the index.
    #[arg(value_parser = local_index())]
    dir: PathBuf,

    /// ID of the document.
    #[arg(long)]
    id: String,

    /// Print the document as JSON, as `waymark index export` writes it.
    #[arg(long)]
    json: bool,
}

/// Lists the documents of an index in their order: ID, title, and the beginning of the text.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark index documents docs.index
  waymark index documents docs.index --after guide.md#2 --limit 100")]
pub(crate) struct DocumentsArgs {
    /// Directory of the index.
    #[arg(value_parser = local_index())]
    dir: PathBuf,

    /// ID of the document after which the list begins.
    #[arg(long, value_name = "ID")]
    after: Option<String>,

    /// Maximum number of documents.
    #[arg(long, value_name = "N", default_value = "20")]
    limit: NonZeroUsize,

    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

/// Number of suggestions for an unknown ID.
pub(super) const SUGGESTED: usize = 5;

/// Characters of a text in a list.
const BEGINNING: usize = 60;

impl ShowArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let contents = Contents::open(&self.dir)?;
        let Some(document) = contents.find(&self.id)? else { return unknown(&contents, &self.id) };
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
            return Ok(());
        }
        // Documents come from outside, and may contain escape sequences for the terminal.
        let mut out = PrintableWriter(out);
        let Document { id, title, text, triples, metadata } = document;
        writeln!(out, "id        {}", id)?;
        writeln!(out, "title     {}", title)?;
        for (key, value) in metadata.iter().flatten() {
            writeln!(out, "{:<9} {}", key, value)?;
        }
        writeln!(out, "triples   {}", triples.map_or(0, |triples| triples.len()))?;
        writeln!(out, "\n{}", text)?;
        Ok(())
    }
}

impl DocumentsArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let contents = Contents::open(&self.dir)?;
        let Some(page) = contents.page(self.after.as_deref(), self.limit.get())? else {
            return unknown(&contents, self.after.as_deref().unwrap_or_default());
        };
        let mut out = io::stdout().lock();
        if self.json {
            return Ok(page.iter().try_for_each(|document| writeln!(out, "{}", serde_json::json!(document)))?);
        }
        // Documents come from outside, and may contain escape sequences for the terminal.
        let mut out = PrintableWriter(out);
        for Document { id, title, text, .. } in &page {
            let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let beginning: String = words.chars().take(BEGINNING).collect();
            writeln!(out, "{id}  {title}  {beginning}")?;
        }
        if page.len() == self.limit.get() {
            let last = page.last().map(|document| document.id.as_str()).unwrap_or_default();
            let total = contents.manifest().passages;
            writeln!(out, "{} of {total} documents; go on with --after {}", page.len(), last)?;
        }
        Ok(())
    }
}

/// Error for an unknown ID, with IDs that are near to it.
fn unknown(contents: &Contents, id: &str) -> anyhow::Result<()> {
    let near = contents.near_ids(id, SUGGESTED)?;
    if near.is_empty() {
        bail!("no document has the ID {id}: `waymark index documents` lists them");
    }
    bail!("no document has the ID {id}: near are {}", near.join(", "));
}
