//! Flags for the source of an index's triples.

use std::convert::Infallible;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use waymark_index::Extract;
use waymark_index::openie::{Builtin, Endpoint, EndpointOptions, EndpointReport, ImportReport, Imported};
use waymark_runtime::environment::{key_in, variable};
use waymark_runtime::remote::{ChatEndpoint, EndpointKey};
use waymark_runtime::trusted_roots::TrustedRoots;

/// Defaults of the flags. Applied here and not by clap, so given flags can be told from defaults.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
const CONCURRENCY: u16 = 8;
const TIMEOUT: u32 = 120;
const ATTEMPTS: u32 = 6;

/// Source of triples for passages that come without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TriplesFlag {
    Builtin,
    None,
    File(PathBuf),
    Endpoint,
}

impl FromStr for TriplesFlag {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<TriplesFlag, Infallible> {
        Ok(match text {
            "builtin" => TriplesFlag::Builtin,
            "none" => TriplesFlag::None,
            "endpoint" => TriplesFlag::Endpoint,
            // A file called `builtin` can be given as `./builtin`.
            path => TriplesFlag::File(path.into()),
        })
    }
}

/// Flags for the source of triples.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Triples")]
pub(crate) struct Args {
    /// Source of the triples (subject, relation, object) that graph search walks over, for passages that come without:
    /// `builtin`, `none`, a FILE of triples, or `endpoint`.
    ///
    /// `builtin` reads the sentences of encyclopedic text; it needs no model and takes seconds for thousands of
    /// passages. `none` builds no graph, unless the corpus brings triples. FILE is OpenIE output of HippoRAG or
    /// RouteRAG, `{"docs": [{"passage", "extracted_triples"}, …]}`, matched by the text of the passage, or JSONL of
    /// `{"id", "triples"}`, matched by ID; a file called `none` is written `./none`. `endpoint` asks a language model
    /// at an OpenAI-compatible endpoint, with two requests per passage.
    ///
    /// The default is `builtin` for a new index; documents added to an index use `builtin` if
    /// its other triples come from there, and otherwise need the source again.
    #[arg(long, value_name = "SOURCE")]
    triples: Option<TriplesFlag>,

    /// Base URL of the endpoint, without `/chat/completions`, such as `https://api.openai.com/v1`. [env:
    /// WAYMARK_OPENIE_URL]
    #[arg(long, value_name = "URL")]
    openie_url: Option<String>,

    /// Name of the model at the endpoint. [env: WAYMARK_OPENIE_MODEL]
    #[arg(long, value_name = "NAME")]
    openie_model: Option<String>,

    /// Environment variable that holds the API key of the endpoint. If it is unset, no key is sent. [default:
    /// OPENAI_API_KEY]
    #[arg(long, value_name = "VARIABLE")]
    openie_key_env: Option<String>,

    /// File that holds the API key of the endpoint, instead of an environment variable.
    #[arg(long, value_name = "FILE")]
    openie_key_file: Option<PathBuf>,

    /// File of CA certificates (PEM) to trust instead of the public ones when the endpoint uses HTTPS.
    #[arg(long, value_name = "FILE")]
    openie_ca: Option<PathBuf>,

    /// Number of concurrent requests to the endpoint. [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    openie_concurrency: Option<u16>,

    /// Timeout of a request to the endpoint, in seconds. [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    openie_timeout: Option<u32>,

    /// Maximum number of attempts per request after transient failures; the wait doubles each time. [default: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    openie_attempts: Option<u32>,

    /// Maximum number of passages that may fail and go without triples. If more fail, the build fails; building again
    /// retries only those. [default: 0]
    #[arg(long, value_name = "N")]
    openie_failures: Option<u64>,
}

/// Source of triples that can report what it found.
#[derive(Debug)]
pub(crate) enum TripleProvider {
    Builtin,
    None,
    Import(Arc<Imported>),
    Endpoint(Arc<Endpoint>, PathBuf),
}

impl Args {
    /// Opens the source that the flags name, for an index at `out`.
    pub(crate) fn source(&self, out: &Path) -> anyhow::Result<TripleProvider> {
        self.check_typed()?;
        Ok(match self.triples.as_ref().unwrap_or(&TriplesFlag::Builtin) {
            TriplesFlag::Builtin => TripleProvider::Builtin,
            TriplesFlag::None => TripleProvider::None,
            TriplesFlag::File(path) => TripleProvider::Import(Arc::new(
                Imported::open(path).context("--triples: expected builtin, none, endpoint or a file of triples")?,
            )),
            TriplesFlag::Endpoint => self.endpoint(out)?,
        })
    }

    /// Chooses the source of triples for documents added to the index in `dir`, which was built with `extractor`: the
    /// one the flags name, or else the same extractor if its name identifies it. `None` leaves the choice to the index.
    pub(crate) fn source_of(&self, dir: &Path, extractor: Option<&str>) -> anyhow::Result<Option<TripleProvider>> {
        if self.triples.is_some() {
            return self.source(dir).map(Some);
        }
        let Some(asked) = extractor.and_then(|name| name.strip_prefix("endpoint ")) else {
            self.check_typed()?;
            return Ok(None);
        };
        let model = self.model();
        if self.typed().is_none() {
            // Environment variables for no endpoint, or for another model, may be meant for other commands. If a
            // document then needs triples, the index reports the missing extractor.
            let meant = self.url().is_some() && model.as_deref() == Some(asked);
            return meant.then(|| self.endpoint(dir)).transpose();
        }
        if let Some(model) = model.filter(|model| model != asked) {
            bail!(
                "the triples of {} come from the model {asked}, not {model}: give --triples endpoint to mix them",
                dir.display()
            );
        }
        self.endpoint(dir).map(Some)
    }

    /// Returns the first endpoint flag on the command line. Environment variables do not count, because they may be
    /// meant for other commands.
    fn typed(&self) -> Option<&'static str> {
        let typed = [
            ("--openie-url", self.openie_url.is_some()),
            ("--openie-model", self.openie_model.is_some()),
            ("--openie-key-env", self.openie_key_env.is_some()),
            ("--openie-key-file", self.openie_key_file.is_some()),
            ("--openie-ca", self.openie_ca.is_some()),
            ("--openie-concurrency", self.openie_concurrency.is_some()),
            ("--openie-timeout", self.openie_timeout.is_some()),
            ("--openie-attempts", self.openie_attempts.is_some()),
            ("--openie-failures", self.openie_failures.is_some()),
        ];
        typed.into_iter().find_map(|(flag, typed)| typed.then_some(flag))
    }

    /// Refuses endpoint flags if no endpoint is used.
    fn check_typed(&self) -> anyhow::Result<()> {
        match self.typed() {
            Some(flag) if self.triples != Some(TriplesFlag::Endpoint) => bail!("{flag} needs --triples endpoint"),
            _ => Ok(()),
        }
    }

    fn url(&self) -> Option<String> {
        self.openie_url.clone().or_else(|| variable("WAYMARK_OPENIE_URL"))
    }

    fn model(&self) -> Option<String> {
        self.openie_model.clone().or_else(|| variable("WAYMARK_OPENIE_MODEL"))
    }

    fn endpoint(&self, out: &Path) -> anyhow::Result<TripleProvider> {
        let (Some(url), Some(model)) = (self.url(), self.model()) else {
            bail!("--triples endpoint needs --openie-url and --openie-model");
        };
        let key = match &self.openie_key_file {
            Some(path) => Some(EndpointKey::read(path)?),
            None => key_in(self.openie_key_env.as_deref().unwrap_or(KEY_VARIABLE))?,
        };
        let timeout = Duration::from_secs(self.openie_timeout.unwrap_or(TIMEOUT).into());
        let roots = TrustedRoots::of_flag("--openie-ca", self.openie_ca.as_deref())?;
        let complete = ChatEndpoint::new(&url, &model, key, timeout, roots).context("--openie-url")?;
        let journal = journal(out);
        let options = EndpointOptions {
            concurrency: self.openie_concurrency.unwrap_or(CONCURRENCY).into(),
            attempts: self.openie_attempts.unwrap_or(ATTEMPTS),
            tolerated: self.openie_failures.unwrap_or(0),
            journal: Some(journal.clone()),
            ..EndpointOptions::default()
        };
        Ok(TripleProvider::Endpoint(Arc::new(Endpoint::new(Arc::new(complete), options)), journal))
    }
}

/// Path of the journal of endpoint replies, next to the index: replies cost money and outlive a failed build.
fn journal(out: &Path) -> PathBuf {
    // Without the final slash; with it, the journal would be a file within the index.
    let mut name = out.components().as_path().as_os_str().to_owned();
    name.push(".openie.jsonl");
    name.into()
}

impl TripleProvider {
    /// Returns the source as the index's extractor.
    pub(crate) fn extract(&self) -> Option<Arc<dyn Extract>> {
        match self {
            TripleProvider::Builtin => Some(Arc::new(Builtin)),
            TripleProvider::None => None,
            TripleProvider::Import(imported) => Some(Arc::clone(imported) as Arc<dyn Extract>),
            TripleProvider::Endpoint(endpoint, _) => Some(Arc::clone(endpoint) as Arc<dyn Extract>),
        }
    }

    /// Prints a report of what was found and what failed.
    pub(crate) fn report(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            TripleProvider::Builtin | TripleProvider::None => Ok(()),
            TripleProvider::Import(imported) => report_import(&imported.report(), &imported.id(), out),
            TripleProvider::Endpoint(endpoint, journal) => {
                report_endpoint(&endpoint.report(), &endpoint.id(), out)?;
                writeln!(out, "replies are stored in {}", journal.display())
            }
        }
    }
}

fn report_import(report: &ImportReport, id: &str, out: &mut dyn Write) -> io::Result<()> {
    let ImportReport { records, replaced, dropped, passages, missing, empty, unmatched } = report;
    writeln!(out, "{id}: {records} records, triples for {} of {passages} passages", passages - missing - empty)?;
    counts(
        out,
        &[
            (*missing, "passages have no record"),
            (*empty, "passages have a record without triples"),
            (*unmatched, "records match no passage of the corpus"),
            (*replaced, "records were replaced by a later one for the same passage"),
            (*dropped, "malformed or repeated triples were left out"),
        ],
    )
}

fn report_endpoint(report: &EndpointReport, id: &str, out: &mut dyn Write) -> io::Result<()> {
    let EndpointReport { passages, reused, failed, mended, empty, retries, first_failure } = report;
    writeln!(out, "{id}: {passages} passages, {reused} of them from stored replies")?;
    counts(
        out,
        &[
            (*failed, "passages failed and have no triples"),
            (*mended, "passages had a truncated reply, whose complete triples were used"),
            (*empty, "passages have no facts"),
            (*retries, "requests were retried"),
        ],
    )?;
    first_failure.iter().try_for_each(|failure| writeln!(out, "first failure: {failure}"))
}

/// Formats one line for each nonzero count.
fn counts(out: &mut dyn Write, counts: &[(u64, &str)]) -> io::Result<()> {
    counts.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, what)| writeln!(out, "{count} {what}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_name_sources_and_anything_else_a_file() {
        let parse = |text: &str| text.parse::<TriplesFlag>().unwrap();
        assert_eq!([parse("builtin"), parse("none")], [TriplesFlag::Builtin, TriplesFlag::None]);
        assert_eq!([parse("endpoint"), parse("./none")], [TriplesFlag::Endpoint, TriplesFlag::File("./none".into())]);
    }

    fn args(flags: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct TriplesCli {
            #[command(flatten)]
            triples: Args,
        }
        <TriplesCli as clap::Parser>::parse_from([&["waymark"], flags].concat()).triples
    }

    #[test]
    fn flags_about_an_endpoint_are_for_an_endpoint() {
        let dir = Path::new("corpus.index");
        for flags in [["--openie-timeout", "9"], ["--openie-model", "m"], ["--openie-key-env", "X"]] {
            let flag = flags[0];
            for source in [&[][..], &["--triples", "builtin"]] {
                let error = args(&[source, &flags].concat()).source(dir).unwrap_err().to_string();
                assert!(error.contains(flag), "{error}");
            }
            for extractor in [None, Some("builtin")] {
                let error = args(&flags).source_of(dir, extractor).unwrap_err().to_string();
                assert!(error.contains(flag), "{error}");
            }
        }
    }

    #[test]
    fn another_model_than_the_index_has_must_be_asked_for() {
        let (dir, url) =
            (Path::new("corpus.index"), ["--openie-url", "http://127.0.0.1:9/v1", "--openie-key-env", "NO_SUCH_KEY"]);
        let source = |more: &[&str]| args(&[&url, more].concat()).source_of(dir, Some("endpoint a"));
        assert!(matches!(source(&["--openie-model", "a"]), Ok(Some(TripleProvider::Endpoint(..)))));
        let error = source(&["--openie-model", "b"]).unwrap_err().to_string();
        assert!(error.contains("the model a, not b") && error.contains("--triples endpoint"), "{error}");
        assert!(source(&["--openie-model", "b", "--triples", "endpoint"]).is_ok());
    }

    #[test]
    fn the_journal_is_next_to_the_index() {
        assert_eq!(journal(Path::new("a/corpus.index/")), Path::new("a/corpus.index.openie.jsonl"));
        assert_eq!(journal(Path::new("corpus.index")), Path::new("corpus.index.openie.jsonl"));
    }

    #[test]
    fn zero_counts_are_not_reported() {
        let mut out = Vec::new();
        let report = ImportReport { records: 3, passages: 4, missing: 1, ..ImportReport::default() };
        report_import(&report, "import x", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "import x: 3 records, triples for 3 of 4 passages\n1 passages have no record\n");
    }
}
