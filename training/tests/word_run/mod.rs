//! Runs of the `train` program over the smallest base model, with questions about words and an index of two passages.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use waymark_index::{BuildOptions, Corpus, Document, build};
use waymark_runtime::embedding::Embedding;

use super::tiny_model::model;

/// Creates a directory with a base model, a recipe, questions and an index. `BASE` in the recipe becomes the path of
/// the base model.
pub fn ready(recipe: &str, questions: impl Iterator<Item = String>) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    model(dir);
    fs::write(dir.join("recipe.toml"), recipe.replace("BASE", dir.to_str().unwrap())).unwrap();
    fs::write(dir.join("questions.jsonl"), questions.collect::<String>()).unwrap();
    let text = |name: &str| Document {
        id: name.to_owned(),
        title: name.to_owned(),
        text: format!("{name} is a word"),
        triples: None,
        metadata: None,
    };
    let corpus = Corpus::from_documents("words", ["w1", "w2"].map(text).to_vec());
    build(corpus, &Embedding::Mock, &dir.join("index"), &BuildOptions::default(), &()).unwrap();
    temp
}

/// Builds the command `train KIND` for such a directory.
pub fn train(kind: &str, dir: &Path, out: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args([kind, "--threads", "1", "--kv-bytes", "8MiB", "--embedder", "mock", "--recipe", "recipe.toml"]);
    command.args(["--questions", "questions.jsonl", "--index", "index", "--out", out]).args(flags).current_dir(dir);
    command
}

/// Standard error of a finished program.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a program, checks that it succeeds, and returns its standard output.
pub fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}
