//! Where the triples of an index come from: the flags of the commands that build one.

use std::convert::Infallible;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use waymark_index::Extract;
use waymark_index::openie::{Builtin, Endpoint, EndpointOptions, EndpointReport, ImportReport, Imported};

use crate::remote::{ChatEndpoint, Key};

/// What holds where the flags do not say. Said here and not to clap, which could not tell then what was typed.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
const CONCURRENCY: u16 = 8;
const TIMEOUT: u32 = 120;
const ATTEMPTS: u32 = 6;

/// What finds the triples of passages that bring none themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Triples {
    Builtin,
    None,
    File(PathBuf),
    Endpoint,
}

impl FromStr for Triples {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Triples, Infallible> {
        Ok(match text {
            "builtin" => Triples::Builtin,
            "none" => Triples::None,
            "endpoint" => Triples::Endpoint,
            path => Triples::File(path.into()),
        })
    }
}

/// Where triples come from.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Triples")]
pub(crate) struct Args {
    /// What finds the triples (subject, relation, object) that graph search walks over, in passages that bring none:
    /// `builtin`, `none`, a FILE of triples, or `endpoint`.
    ///
    /// `builtin` reads the sentences of encyclopaedic text; it needs no model and takes seconds for thousands of
    /// passages. `none` builds no graph, unless the corpus brings triples. FILE is OpenIE output of HippoRAG or
    /// RouteRAG, `{"docs": [{"passage", "extracted_triples"}, …]}`, matched by the text of the passage, or JSONL of
    /// `{"id", "triples"}`, matched by id; for one that is called `none`, write `./none`. `endpoint` asks a language
    /// model at an OpenAI-compatible address, twice for each passage.
    ///
    /// When not given, `builtin` for a new index, and what the others are from for documents that are added to one.
    #[arg(long, value_name = "SOURCE")]
    triples: Option<Triples>,

    /// Address of the endpoint, the part before `/chat/completions`, such as `https://api.openai.com/v1`. [env:
    /// WAYMARK_OPENIE_URL]
    #[arg(long, value_name = "URL")]
    openie_url: Option<String>,

    /// Model to ask for at the endpoint. [env: WAYMARK_OPENIE_MODEL]
    #[arg(long, value_name = "NAME")]
    openie_model: Option<String>,

    /// Environment variable that holds the key of the endpoint; without it no key is sent. [default: OPENAI_API_KEY]
    #[arg(long, value_name = "VARIABLE")]
    openie_key_env: Option<String>,

    /// File that holds the key of the endpoint, instead of a variable.
    #[arg(long, value_name = "FILE")]
    openie_key_file: Option<PathBuf>,

    /// Passages to ask the endpoint about at once. [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    openie_concurrency: Option<u16>,

    /// Seconds that a reply of the endpoint may take. [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    openie_timeout: Option<u32>,

    /// Times that a request is made at most, where it fails for a reason that may pass; the waits between them double.
    /// [default: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    openie_attempts: Option<u32>,

    /// Passages that may fail for good and go without triples. If more do, the build fails; building again asks only
    /// about those that failed. [default: 0]
    #[arg(long, value_name = "N")]
    openie_failures: Option<u64>,
}

/// What finds triples, and can say afterwards what it found.
#[derive(Debug)]
pub(crate) enum Source {
    Builtin,
    None,
    Import(Arc<Imported>),
    Endpoint(Arc<Endpoint>, PathBuf),
}

impl Args {
    /// Opens what the flags name, for an index at `out`.
    pub(crate) fn source(&self, out: &Path) -> anyhow::Result<Source> {
        self.check_typed()?;
        Ok(match self.triples.as_ref().unwrap_or(&Triples::Builtin) {
            Triples::Builtin => Source::Builtin,
            Triples::None => Source::None,
            Triples::File(path) => Source::Import(Arc::new(
                Imported::open(path).context("--triples takes builtin, none, endpoint or a file of triples")?,
            )),
            Triples::Endpoint => self.endpoint(out)?,
        })
    }

    /// What documents are asked of that come to the index in `dir`, whose extractor was `extractor`: what the flags
    /// name, or that one, as far as it can be told from its name. `None` leaves it to the index.
    pub(crate) fn source_of(&self, dir: &Path, extractor: Option<&str>) -> anyhow::Result<Option<Source>> {
        if self.triples.is_some() {
            return self.source(dir).map(Some);
        }
        let Some(asked) = extractor.and_then(|name| name.strip_prefix("endpoint ")) else {
            self.check_typed()?;
            return Ok(None);
        };
        let model = self.model();
        if self.typed().is_none() {
            // Variables that name no endpoint, or another, may stand for other commands, and there may be no document to
            // ask about; the index says so where there is one.
            let meant = self.url().is_some() && model.as_deref() == Some(asked);
            return meant.then(|| self.endpoint(dir)).transpose();
        }
        if let Some(model) = model.filter(|model| model != asked) {
            bail!(
                "the triples of {} are of endpoint {asked}, not of {model}: say --triples endpoint to mix them",
                dir.display()
            );
        }
        self.endpoint(dir).map(Some)
    }

    /// The first flag about an endpoint that was typed; those that variables set may stand for other commands.
    fn typed(&self) -> Option<&'static str> {
        let typed = [
            ("--openie-url", self.openie_url.is_some()),
            ("--openie-model", self.openie_model.is_some()),
            ("--openie-key-env", self.openie_key_env.is_some()),
            ("--openie-key-file", self.openie_key_file.is_some()),
            ("--openie-concurrency", self.openie_concurrency.is_some()),
            ("--openie-timeout", self.openie_timeout.is_some()),
            ("--openie-attempts", self.openie_attempts.is_some()),
            ("--openie-failures", self.openie_failures.is_some()),
        ];
        typed.into_iter().find_map(|(flag, typed)| typed.then_some(flag))
    }

    /// Refuses flags about an endpoint where none is asked.
    fn check_typed(&self) -> anyhow::Result<()> {
        match self.typed() {
            Some(flag) if self.triples != Some(Triples::Endpoint) => bail!("{flag} is for --triples endpoint"),
            _ => Ok(()),
        }
    }

    fn url(&self) -> Option<String> {
        self.openie_url.clone().or_else(|| variable("WAYMARK_OPENIE_URL"))
    }

    fn model(&self) -> Option<String> {
        self.openie_model.clone().or_else(|| variable("WAYMARK_OPENIE_MODEL"))
    }

    fn endpoint(&self, out: &Path) -> anyhow::Result<Source> {
        let (Some(url), Some(model)) = (self.url(), self.model()) else {
            bail!("--triples endpoint needs --openie-url and --openie-model");
        };
        let key = match &self.openie_key_file {
            Some(path) => Some(Key::read(path)?),
            None => key_in(self.openie_key_env.as_deref().unwrap_or(KEY_VARIABLE))?,
        };
        let timeout = Duration::from_secs(self.openie_timeout.unwrap_or(TIMEOUT).into());
        let complete = ChatEndpoint::new(&url, &model, key, timeout).context("--openie-url")?;
        let journal = journal(out);
        let options = EndpointOptions {
            concurrency: self.openie_concurrency.unwrap_or(CONCURRENCY).into(),
            attempts: self.openie_attempts.unwrap_or(ATTEMPTS),
            tolerated: self.openie_failures.unwrap_or(0),
            journal: Some(journal.clone()),
            ..EndpointOptions::default()
        };
        Ok(Source::Endpoint(Arc::new(Endpoint::new(Arc::new(complete), options)), journal))
    }
}

/// What the environment variable `name` is set to, if it is to anything.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The key in the environment variable `name`, if that is set.
pub(crate) fn key_in(name: &str) -> anyhow::Result<Option<Key>> {
    match std::env::var(name) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Key::new(&text).map(Some).with_context(|| format!("the variable {name}")),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("the variable {name}")),
    }
}

/// What an endpoint answered is kept beside the index, not in it: it is paid for, and outlives a failed build.
fn journal(out: &Path) -> PathBuf {
    let mut name = out.components().as_path().as_os_str().to_owned();
    name.push(".openie.jsonl");
    name.into()
}

impl Source {
    /// The source as the index asks for one.
    pub(crate) fn extract(&self) -> Option<Arc<dyn Extract>> {
        match self {
            Source::Builtin => Some(Arc::new(Builtin)),
            Source::None => None,
            Source::Import(imported) => Some(Arc::clone(imported) as Arc<dyn Extract>),
            Source::Endpoint(endpoint, _) => Some(Arc::clone(endpoint) as Arc<dyn Extract>),
        }
    }

    /// Says what was found and what was not.
    pub(crate) fn report(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Source::Builtin | Source::None => Ok(()),
            Source::Import(imported) => report_import(&imported.report(), &imported.id(), out),
            Source::Endpoint(endpoint, journal) => {
                report_endpoint(&endpoint.report(), &endpoint.id(), out)?;
                writeln!(out, "its answers are kept in {}", journal.display())
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
            (*unmatched, "records are about no passage of the corpus"),
            (*replaced, "records were replaced by a later one for the same passage"),
            (*dropped, "triples had not three parts or repeated another of their passage, and were left out"),
        ],
    )
}

fn report_endpoint(report: &EndpointReport, id: &str, out: &mut dyn Write) -> io::Result<()> {
    let EndpointReport { passages, reused, failed, mended, empty, retries, first_failure } = report;
    writeln!(out, "{id}: {passages} passages, {reused} of them answered before")?;
    counts(
        out,
        &[
            (*failed, "passages failed and have no triples"),
            (*mended, "passages had a reply that was cut off and mended"),
            (*empty, "passages state nothing"),
            (*retries, "requests were made again"),
        ],
    )?;
    first_failure.iter().try_for_each(|failure| writeln!(out, "the first failure: {failure}"))
}

/// One line for each count that is not 0.
fn counts(out: &mut dyn Write, counts: &[(u64, &str)]) -> io::Result<()> {
    counts.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, what)| writeln!(out, "{count} {what}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_name_sources_and_anything_else_a_file() {
        let parse = |text: &str| text.parse::<Triples>().unwrap();
        assert_eq!([parse("builtin"), parse("none")], [Triples::Builtin, Triples::None]);
        assert_eq!([parse("endpoint"), parse("./none")], [Triples::Endpoint, Triples::File("./none".into())]);
    }

    fn args(flags: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            triples: Args,
        }
        <Line as clap::Parser>::parse_from([&["waymark"], flags].concat()).triples
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
        assert!(matches!(source(&["--openie-model", "a"]), Ok(Some(Source::Endpoint(..)))));
        let error = source(&["--openie-model", "b"]).unwrap_err().to_string();
        assert!(error.contains("endpoint a") && error.contains("--triples endpoint"), "{error}");
        assert!(source(&["--openie-model", "b", "--triples", "endpoint"]).is_ok());
    }

    #[test]
    fn the_journal_lies_beside_the_index() {
        assert_eq!(journal(Path::new("a/corpus.index/")), Path::new("a/corpus.index.openie.jsonl"));
        assert_eq!(journal(Path::new("corpus.index")), Path::new("corpus.index.openie.jsonl"));
    }

    #[test]
    fn what_is_nothing_is_not_reported() {
        let mut out = Vec::new();
        let report = ImportReport { records: 3, passages: 4, missing: 1, ..ImportReport::default() };
        report_import(&report, "import x", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "import x: 3 records, triples for 3 of 4 passages\n1 passages have no record\n");
    }
}
