//! What the cold start is made of, as it is written in a file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::teacher::Habits;

/// A recipe. Paths are relative to the folder of the data.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Where everything random starts.
    pub seed: u64,
    /// Files of questions that are measured.
    pub measured: Vec<PathBuf>,
    /// What the teacher does that it could leave.
    pub habits: Habits,
    /// Where lessons come from, in the order in which they are played.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
}

/// One source of lessons.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The name that its samples bear.
    pub dataset: String,
    /// What is known about its questions.
    pub form: Form,
    /// The corpus.
    pub corpus: PathBuf,
    /// The index over it: a folder within that of the indexes.
    pub index: PathBuf,
    /// Training questions.
    pub questions: Option<PathBuf>,
    /// Triples that were extracted from the corpus.
    pub triples: Option<PathBuf>,
    /// Trajectories to make, those held out included.
    pub lessons: usize,
    /// How many of them are held out.
    pub held_out: usize,
    /// How often one question may be played, in other words.
    pub variants: usize,
}

/// What is known about a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Nothing: single-hop questions are made of the corpus, of extracted triples, and of gold triples.
    Single,
    /// Nothing: questions of several hops are composed of the same.
    Composed,
    /// Gold triples.
    Triples,
    /// A decomposition.
    Parts,
    /// Gold passages.
    Passages,
}

/// Why a recipe could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct RecipeError {
    path: PathBuf,
    reason: String,
}

impl Recipe {
    /// Reads a recipe.
    ///
    /// # Errors
    /// [`RecipeError`] where it is none, naming the place.
    pub fn read(path: &Path) -> Result<Recipe, RecipeError> {
        let fail = |reason: String| RecipeError { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        let recipe: Recipe = toml::from_str(&text).map_err(|error| fail(error.to_string()))?;
        recipe.flaw().map_or(Ok(recipe), |flaw| Err(fail(flaw)))
    }

    /// What is wrong with its shares, or with the names of its sources: samples are told apart by them, and files are
    /// called so.
    fn flaw(&self) -> Option<String> {
        let Habits { mislead, explore, wide, concede, deep } = self.habits;
        let shares = [("mislead", mislead), ("explore", explore), ("wide", wide), ("concede", concede), ("deep", deep)];
        for (name, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return Some(format!("habits.{name} = {share}: must be from 0 to 1"));
            }
        }
        let names: Vec<&str> = self.sources.iter().map(|source| source.dataset.as_str()).collect();
        for (at, name) in names.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
                return Some(format!("dataset {name:?}: letters, digits, `_`, `-` and `.` make a name"));
            }
            if names[..at].contains(name) {
                return Some(format!("dataset {name:?}: two sources have this name"));
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

    fn read(names: &[&str]) -> Result<Recipe, RecipeError> {
        read_with(names, "0.0")
    }

    fn read_with(names: &[&str], concede: &str) -> Result<Recipe, RecipeError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recipe.toml");
        let sources = names.iter().map(|name| format!("[[source]]\ndataset = \"{name}\"\n{SOURCE}"));
        let head = format!(
            "seed = 1\nmeasured = []\n[habits]\nmislead = 0.5\nexplore = 0.0\nwide = 0.0\ndeep = 0.0\nconcede = {concede}\n"
        );
        std::fs::write(&path, [head].into_iter().chain(sources).collect::<String>()).unwrap();
        Recipe::read(&path)
    }

    #[test]
    fn shares_are_from_nothing_to_all() {
        assert!(read_with(&["a"], "1.0").is_ok());
        for concede in ["60.0", "-0.1", "nan"] {
            let message = read_with(&["a"], concede).unwrap_err().to_string();
            assert!(message.contains("recipe.toml: habits.concede"), "{message}");
        }
    }

    #[test]
    fn sources_have_names_of_their_own() {
        assert_eq!(read(&["a", "b-1"]).unwrap().sources.len(), 2);
        for names in [&["a", "b", "a"][..], &["../a"], &[""], &["a b"]] {
            let message = read(names).unwrap_err().to_string();
            assert!(message.contains("recipe.toml") && message.contains("dataset"), "{message}");
        }
    }
}
