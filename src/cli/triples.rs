//! Where the triples of an index come from: the flags of the commands that build one.

use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use waymark_index::Extract;
use waymark_index::openie::{ImportReport, Imported};

/// What finds the triples of passages that bring none themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Triples {
    /// Nothing does.
    None,
    /// A file that somebody else's extraction left.
    File(PathBuf),
}

impl FromStr for Triples {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Triples, Self::Err> {
        Ok(match text {
            "none" => Triples::None,
            path => Triples::File(path.into()),
        })
    }
}

/// Where triples come from.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Triples")]
pub(crate) struct Args {
    /// What finds the triples (subject, relation, object) that graph search walks over, in passages that bring none:
    /// `none`, or a FILE of triples extracted elsewhere.
    ///
    /// FILE is OpenIE output of HippoRAG or RouteRAG, `{"docs": [{"passage", "extracted_triples"}, …]}`, matched by the
    /// text of the passage, or JSONL of `{"id", "triples"}`, matched by id. For a file that is called `none`, write
    /// `./none`.
    #[arg(long, value_name = "SOURCE", default_value = "none")]
    triples: Triples,
}

/// What finds triples, and can say afterwards what it found.
#[derive(Debug)]
pub(crate) enum Source {
    None,
    Import(Arc<Imported>),
}

impl Args {
    /// Opens what the flags name.
    pub(crate) fn source(&self) -> anyhow::Result<Source> {
        Ok(match &self.triples {
            Triples::None => Source::None,
            Triples::File(path) => Source::Import(Arc::new(Imported::open(path)?)),
        })
    }
}

impl Source {
    /// The source as the index asks for one.
    pub(crate) fn extract(&self) -> Option<Arc<dyn Extract>> {
        match self {
            Source::None => None,
            Source::Import(imported) => Some(Arc::clone(imported) as Arc<dyn Extract>),
        }
    }

    /// Says what was found and what was not.
    pub(crate) fn report(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Source::None => Ok(()),
            Source::Import(imported) => report_import(&imported.report(), &imported.id(), out),
        }
    }
}

fn report_import(report: &ImportReport, id: &str, out: &mut dyn Write) -> io::Result<()> {
    let ImportReport { records, replaced, dropped, passages, missing, empty, unmatched } = report;
    writeln!(out, "{id}: {records} records, triples for {} of {passages} passages", passages - missing - empty)?;
    for (count, what) in [
        (missing, "passages have no record"),
        (empty, "passages have a record without triples"),
        (unmatched, "records are about no passage of the corpus"),
        (replaced, "records were replaced by a later one for the same passage"),
        (dropped, "triples had not three parts or repeated another of their passage, and were left out"),
    ] {
        if *count > 0 {
            writeln!(out, "{count} {what}")?;
        }
    }
    Ok(())
}
