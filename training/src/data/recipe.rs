//! Recipe of the cold-start data, a TOML file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use toml::{Table, Value};
use waymark_agent::{AgentError, Policy};

use super::routing::Routing;
use super::teacher::Habits;
use super::voice;
use crate::recipe::replace;

/// Recipe of the cold-start data. Paths are relative to the data directory.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DataRecipe {
    /// Random seed.
    pub seed: u64,
    /// Files of measured questions, which are kept out.
    pub measured: Vec<PathBuf>,
    /// Policy that plays the lessons, as in `policy.toml`: protocol, retrieval and budget. It should equal the policy
    /// of the recipe that trains on the lessons. Without a protocol it is RouteRAG with the default ranking of each mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Table>,
    /// Rates of the teacher's optional behaviors.
    pub habits: Habits,
    /// Choice of modes by what they find. `None` takes the cheapest mode that finds a fact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<Routing>,
    /// Sources of lessons, in the order of play.
    #[serde(rename = "source")]
    pub sources: Vec<LessonSource>,
}

/// Source of lessons.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LessonSource {
    /// Data set name of the samples.
    pub dataset: String,
    /// Annotations that the lessons are made from.
    pub form: SourceForm,
    /// Path to the corpus.
    pub corpus: PathBuf,
    /// Directory of its index, relative to the directory of the indexes.
    pub index: PathBuf,
    /// Path to training questions, if any.
    pub questions: Option<PathBuf>,
    /// Path to triples extracted from the corpus, if any.
    pub triples: Option<PathBuf>,
    /// Number of trajectories to make, including held-out ones.
    pub lessons: usize,
    /// Number of held-out questions.
    pub held_out: usize,
    /// Number of times that a question may be played, in different words.
    pub variants: usize,
}

/// Annotations that lessons are made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceForm {
    /// None. Single-hop questions are made from articles, extracted triples and gold triples.
    Single,
    /// None. Multi-hop questions are composed from the same facts.
    Composed,
    /// Gold triples.
    Triples,
    /// Decompositions into sub-questions.
    Parts,
    /// Gold passages.
    Passages,
    /// None. Greetings, thanks and the like, which need no search.
    SmallTalk,
}

/// Error of reading a recipe.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct DataRecipeError {
    path: PathBuf,
    reason: String,
}

/// Error returned if a source to leave out is not in the recipe.
#[derive(Debug, thiserror::Error)]
#[error("--skip {unknown}: the recipe has no such data set; it has {}", datasets.join(", "))]
pub struct SkipError {
    unknown: String,
    datasets: Vec<String>,
}

impl DataRecipe {
    /// Reads and checks a recipe. Each of `overrides` is `section.field=value` and takes precedence over the file.
    ///
    /// # Errors
    /// [`DataRecipeError`] if the recipe is invalid, with the offending field.
    pub fn read(path: &Path, overrides: &[String]) -> Result<DataRecipe, DataRecipeError> {
        let fail = |reason: String| DataRecipeError { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| fail(error.to_string()))?;
        for change in overrides {
            replace(&mut table, change).map_err(|error| fail(error.to_string()))?;
        }
        let recipe: DataRecipe =
            Value::Table(table).try_into().map_err(|error: toml::de::Error| fail(error.to_string()))?;
        let policy = recipe.policy(path).map_err(|error| fail(error.to_string()))?;
        let protocol = policy.protocol.name();
        if voice::voice(protocol).is_none() {
            let known = voice::protocols().join(", ");
            return Err(fail(format!("policy.protocol {protocol:?}: lessons can be written for {known}")));
        }
        recipe.flaw().map_or(Ok(recipe), |flaw| Err(fail(flaw)))
    }

    /// Returns the recipe without the sources of the given data sets.
    ///
    /// # Errors
    /// [`SkipError`] if the recipe has no such source.
    pub fn skipping(mut self, datasets: &[String]) -> Result<DataRecipe, SkipError> {
        let known = |name: &&String| self.sources.iter().all(|source| source.dataset != **name);
        if let Some(unknown) = datasets.iter().find(known) {
            let datasets = self.sources.iter().map(|source| source.dataset.clone()).collect();
            return Err(SkipError { unknown: unknown.clone(), datasets });
        }
        self.sources.retain(|source| !datasets.contains(&source.dataset));
        Ok(self)
    }

    /// Builds the policy that plays the lessons.
    ///
    /// # Errors
    /// The error of [`Policy::parse`] if `[policy]` is invalid.
    pub fn policy(&self, path: &Path) -> Result<Policy, AgentError> {
        let mut table = Table::new();
        table.insert("name".into(), "lessons".into());
        table.extend(self.policy.clone().unwrap_or_default());
        let has_protocol = table.contains_key("protocol");
        table.entry("protocol").or_insert_with(|| "routerag".into());
        let retrieval = table.get("retrieval").and_then(Value::as_table);
        let has_ranking = retrieval.is_some_and(|retrieval| retrieval.contains_key("ranking"));
        let mut policy = Policy::parse(&table.to_string(), path)?;
        if !has_protocol && !has_ranking {
            // RouteRAG's own ranking is dense in every mode; the recipes here rank each mode by its default.
            policy.retrieval.search.ranking = None;
        }
        Ok(policy)
    }

    /// Describes an invalid rate or source name, if there is one. Source names identify samples and become file names.
    fn flaw(&self) -> Option<String> {
        let Habits { mislead, explore, wide, concede, deep, withhold, backtrack } = self.habits;
        let most = self.routing.map_or(1.0, |routing| routing.most);
        let shares = [
            ("habits.mislead", mislead),
            ("habits.explore", explore),
            ("habits.wide", wide),
            ("habits.concede", concede),
            ("habits.deep", deep),
            ("habits.withhold", withhold),
            ("habits.backtrack", backtrack),
            ("routing.most", most),
        ];
        for (name, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return Some(format!("{name} = {share}: must be between 0 and 1"));
            }
        }
        if self.routing.is_some() && (explore > 0.0 || wide > 0.0) {
            return Some("habits.explore and habits.wide must be 0 with [routing], which chooses the mode".into());
        }
        let names: Vec<&str> = self.sources.iter().map(|source| source.dataset.as_str()).collect();
        for (at, name) in names.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
                return Some(format!(
                    "dataset {name:?}: a name may only contain letters, digits, `_`, `-` and `.`, and must not start with `.`"
                ));
            }
            if names[..at].contains(name) {
                return Some(format!("dataset {name:?}: two sources share this name"));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SOURCE: &str = "form = \"single\"\ncorpus = \"c\"\nindex = \"i\"\nlessons = 3\nheld_out = 1\nvariants = 1\n";

    fn read(names: &[&str]) -> Result<DataRecipe, DataRecipeError> {
        read_with(names, "0.0")
    }

    fn read_with(names: &[&str], concede: &str) -> Result<DataRecipe, DataRecipeError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recipe.toml");
        let sources = names.iter().map(|name| format!("[[source]]\ndataset = \"{name}\"\n{SOURCE}"));
        let head = format!(
            "seed = 1\nmeasured = []\n[habits]\nmislead = 0.5\nexplore = 0.0\nwide = 0.0\ndeep = 0.0\nconcede = {concede}\n"
        );
        std::fs::write(&path, [head].into_iter().chain(sources).collect::<String>()).unwrap();
        DataRecipe::read(&path, &[])
    }

    #[test]
    fn sources_are_left_out_by_name() {
        let skipped = read(&["a", "b"]).unwrap().skipping(&["b".to_owned()]).unwrap();
        let left: Vec<&str> = skipped.sources.iter().map(|source| source.dataset.as_str()).collect();
        assert_eq!(left, ["a"]);
        let message = read(&["a", "b"]).unwrap().skipping(&["c".to_owned()]).unwrap_err().to_string();
        assert_eq!(message, "--skip c: the recipe has no such data set; it has a, b");
    }

    #[test]
    fn rates_must_lie_between_0_and_1() {
        assert!(read_with(&["a"], "1.0").is_ok());
        for concede in ["60.0", "-0.1", "nan"] {
            let message = read_with(&["a"], concede).unwrap_err().to_string();
            assert!(message.contains("recipe.toml: habits.concede"), "{message}");
        }
    }

    #[test]
    fn overrides_and_policies_are_checked() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/routing_data.toml");
        let read = |set: &str| DataRecipe::read(&path, &[set.to_owned()]);
        let dense = read("policy.retrieval.ranking=dense").unwrap();
        let ranking = dense.policy(&path).unwrap().retrieval.search.ranking;
        assert_eq!(ranking, Some(waymark_index::Ranking::Dense));
        for (set, reason) in [
            ("policy.protocol=plain", "lessons can be written for routerag, search-r1, path-router"),
            ("policy.protocol=routrag", "unknown protocol"),
            ("routing.most=1.5", "routing.most = 1.5"),
            ("habits.explore=0.2", "must be 0 with [routing]"),
            ("habits.color=0.2", "color"),
        ] {
            let message = read(set).unwrap_err().to_string();
            assert!(message.contains("routing_data.toml") && message.contains(reason), "{set}: {message}");
        }
    }

    #[test]
    fn a_policy_without_a_protocol_is_routerag() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/cold_start.toml");
        for (set, ranking) in [
            (None, None),
            (Some("policy.retrieval.ranking=dense"), Some(waymark_index::Ranking::Dense)),
            (Some("policy.budget.turns=3"), None),
        ] {
            let overrides: Vec<String> = set.into_iter().map(str::to_owned).collect();
            let policy = DataRecipe::read(&path, &overrides).unwrap().policy(&path).unwrap();
            assert_eq!((policy.protocol.name(), policy.retrieval.search.ranking), ("routerag", ranking), "{set:?}");
        }
    }

    #[test]
    fn source_names_must_be_valid_and_unique() {
        assert_eq!(read(&["a", "b-1"]).unwrap().sources.len(), 2);
        for names in [&["a", "b", "a"][..], &["../a"], &[""], &["a b"]] {
            let message = read(names).unwrap_err().to_string();
            assert!(message.contains("recipe.toml") && message.contains("dataset"), "{message}");
        }
    }
}
