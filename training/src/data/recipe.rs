//! What the cold start is made of, as it is written in a file.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::teacher::Habits;

/// A recipe. Paths are relative to the folder of the data.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Nothing: single-hop questions are made of the corpus, of extracted triples, and of gold triples.
    Single,
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
        toml::from_str(&text).map_err(|error| fail(error.to_string()))
    }
}
