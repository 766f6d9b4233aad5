//! Flags for retrieval.

use std::collections::HashSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};

use super::{
    ConfigError, EmbedderArgs, EmbedderConfig, FactFilterArgs, FactFilterConfig, RerankerArgs, RerankerConfig,
    or_cores, seconds,
};

/// Default pause between two scrubs of an index.
const DEFAULT_SCRUB: Duration = Duration::from_secs(3600);

/// Flags for retrieval.
#[derive(Debug, Clone, clap::Args)]
pub struct RetrievalArgs {
    /// Directory of the index to search, made by `waymark index build`; several as `--index NAME=DIR --index NAME=DIR`.
    /// The one without a name, or else the first, is the default index; requests name the others (`rag.index`). The URL
    /// of snapshots that `waymark index push` publishes, `s3://BUCKET/PREFIX` or `file:///FOLDER`, is fetched and
    /// followed.
    #[arg(long = "index", env = "WAYMARK_INDEX", value_name = "[NAME=]DIR|URL", value_delimiter = ',')]
    pub indexes: Vec<IndexPlace>,

    /// Open the index read-only: refuse changes of documents over HTTP.
    #[arg(long, env = "WAYMARK_READ_ONLY_INDEX")]
    pub read_only_index: bool,

    /// Number of earlier snapshots of the index to keep, for `waymark index snapshots` and `waymark index restore`.
    #[arg(long, env = "WAYMARK_KEEP_SNAPSHOTS", value_name = "N", default_value_t = 0)]
    pub keep_snapshots: usize,

    /// Seconds between two scrubs, which read the files of the index and compare their checksums.
    #[arg(long, env = "WAYMARK_SCRUB_SECONDS", value_name = "SECONDS", default_value_t = DEFAULT_SCRUB.as_secs_f64(), value_parser = seconds)]
    pub scrub_seconds: f64,

    /// Flags for the embedder.
    #[command(flatten)]
    pub embedder: EmbedderArgs,

    /// Flags for the reranker.
    #[command(flatten)]
    pub reranker: RerankerArgs,

    /// Number of search threads; 0 takes one per core.
    #[arg(long, env = "WAYMARK_SEARCH_THREADS", default_value_t = 0)]
    pub search_threads: usize,

    /// Timeout of one search, in milliseconds.
    #[arg(long, env = "WAYMARK_SEARCH_DEADLINE_MS", default_value_t = 5000)]
    pub search_deadline_ms: u64,

    /// Flags for the fact filter.
    #[command(flatten)]
    pub fact_filter: FactFilterArgs,
}

/// Directory or URL of an index, and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPlace {
    /// Name given by the user. `None` uses the name of the directory.
    pub name: Option<String>,
    /// Directory of the index, or URL of its snapshots.
    pub dir: PathBuf,
}

impl FromStr for IndexPlace {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let is_name = |name: &str| {
            (1..=64).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        Ok(match text.split_once('=') {
            // A path may contain `=`, so the text before it must have the form of a name.
            Some((name, dir)) if is_name(name) => Self { name: Some(name.to_owned()), dir: dir.into() },
            _ => Self { name: None, dir: text.into() },
        })
    }
}

/// Returns the parser of the directory of an index for commands that read it themselves. Refuses the URL of snapshots,
/// which servers alone fetch.
pub fn local_index() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|dir| {
        let text = dir.to_string_lossy().into_owned();
        if text.contains("://") {
            return Err(format!(
                "only servers (`waymark serve`) take a URL: fetch the index first by `waymark index pull {text} DIR`"
            ));
        }
        Ok(dir)
    })
}

/// Configuration of retrieval.
#[derive(Debug, Clone)]
pub struct RetrievalConfig {
    /// Directory of the default index, or URL of its snapshots. `None` serves without one.
    pub index: Option<PathBuf>,
    /// Name of the default index. `None` uses the name of its directory.
    pub index_name: Option<String>,
    /// Names and directories of the other indexes, or URLs of their snapshots.
    pub others: Vec<(String, PathBuf)>,
    /// If `true`, documents can be changed over HTTP.
    pub writable: bool,
    /// Number of earlier snapshots to keep.
    pub keep_snapshots: usize,
    /// Pause between two scrubs.
    pub scrub: Duration,
    /// Configuration of the embedder.
    pub embedder: EmbedderConfig,
    /// Number of search threads.
    pub threads: usize,
    /// Timeout of one search.
    pub deadline: Duration,
    /// Configuration of the fact filter. `None` keeps all facts.
    pub fact_filter: Option<FactFilterConfig>,
    /// Configuration of the reranker. `None` leaves results in the order of the search.
    pub reranker: Option<RerankerConfig>,
}

impl RetrievalArgs {
    /// Resolves the flags.
    ///
    /// # Errors
    /// If a timeout is zero, the flags of an endpoint do not fit together, or two indexes have the same name or none.
    pub fn resolve(self) -> Result<RetrievalConfig, ConfigError> {
        let (default, others) = named_indexes(self.indexes)?;
        let (index_name, index) = default.map_or((None, None), |place| (place.name, Some(place.dir)));
        let embedder = match &index {
            Some(dir) => self.embedder.resolve_for(dir)?,
            None => self.embedder.resolve()?,
        };
        Ok(RetrievalConfig {
            index,
            index_name,
            others,
            writable: !self.read_only_index,
            keep_snapshots: self.keep_snapshots,
            // Without any pause, scrubs would take a core.
            scrub: Duration::from_secs_f64(self.scrub_seconds.max(0.1)),
            embedder,
            threads: or_cores(self.search_threads),
            deadline: Duration::from_millis(self.search_deadline_ms),
            fact_filter: self.fact_filter.resolve()?,
            reranker: self.reranker.resolve()?,
        })
    }
}

/// A name and the directory of the index that has it.
type NamedDir = (String, PathBuf);

/// Returns the default index: the one without a name, or else the first; and the names and directories of the others.
fn named_indexes(mut places: Vec<IndexPlace>) -> Result<(Option<IndexPlace>, Vec<NamedDir>), ConfigError> {
    if places.is_empty() {
        return Ok((None, Vec::new()));
    }
    let default = places.remove(places.iter().position(|place| place.name.is_none()).unwrap_or(0));
    let dir_name = || default.dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let own = default.name.clone().or_else(dir_name);
    // The name `default` always means the default index, so no other index may have it.
    let mut names: HashSet<String> = own.into_iter().chain(["default".to_owned()]).collect();
    let mut others = Vec::with_capacity(places.len());
    for IndexPlace { name, dir } in places {
        let name = name.ok_or_else(|| ConfigError::IndexWithoutName(dir.clone()))?;
        if !names.insert(name.clone()) {
            return Err(ConfigError::IndexName(name));
        }
        others.push((name, dir));
    }
    Ok((Some(default), others))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_url_is_no_directory_of_an_index() {
        let read = |value: &str| {
            let flag = clap::Arg::new("index").value_parser(local_index());
            let matches = clap::Command::new("search").no_binary_name(true).arg(flag).try_get_matches_from([value]);
            matches.map(|mut matches| matches.remove_one::<PathBuf>("index"))
        };
        assert_eq!(read("dir/a=b").unwrap(), Some(PathBuf::from("dir/a=b")));
        for url in ["file:///srv/x", "s3://bucket/x"] {
            let refused = read(url).unwrap_err().to_string();
            assert!(refused.contains(&format!("waymark index pull {url} DIR")), "{refused}");
        }
    }

    #[test]
    fn the_index_without_a_name_or_the_first_is_the_default() {
        let of = |texts: &[&str]| named_indexes(texts.iter().map(|text| text.parse().unwrap()).collect());
        let place = |name: Option<&str>, dir: &str| Some(IndexPlace { name: name.map(str::to_owned), dir: dir.into() });
        let other = |name: &str, dir: &str| vec![(name.to_owned(), PathBuf::from(dir))];
        assert_eq!(of(&[]).unwrap(), (None, Vec::new()));
        assert_eq!(of(&["a=x", "y"]).unwrap(), (place(None, "y"), other("a", "x")));
        assert_eq!(of(&["a=x", "b=y=z"]).unwrap(), (place(Some("a"), "x"), other("b", "y=z")));
        assert_eq!(of(&["dir/a=b"]).unwrap().0, place(None, "dir/a=b"));
        assert!(matches!(of(&["x", "y"]), Err(ConfigError::IndexWithoutName(_))));
        assert!(matches!(of(&["a=x", "a=y"]), Err(ConfigError::IndexName(_))));
        for taken in ["default=y", "x=y"] {
            assert!(matches!(of(&["dir/x", taken]), Err(ConfigError::IndexName(_))), "{taken}");
        }
    }
}
