//! Reads the files of a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use walkdir::{DirEntry, WalkDir};

use super::field_map::FieldMap;
use super::file_reader::CorpusFile;
use super::format::FileFormat;
use super::read_limits::ReadLimits;
use super::{CorpusItem, CorpusItems};
use crate::error::IndexError;

/// Reads all files below `root` in the order of their names, without hidden files. Follows links to files, but not
/// links to folders. Files that are not of a corpus become [`CorpusItem::Skipped`].
///
/// The name of a file is its path relative to `root`, so the same file always gives the same IDs.
pub(super) fn read(root: &Path, fields: &Arc<FieldMap>, limits: &ReadLimits) -> Result<CorpusItems, IndexError> {
    let root = root.to_owned();
    let fields = fields.clone();
    let limits = limits.clone();
    let files = files(&root)?;
    let dataset = DatasetKind::of(&root, &files);
    Ok(Box::new(files.into_iter().flat_map(move |path| -> CorpusItems {
        if let Some(reason) = dataset.excludes(&root, &path) {
            return Box::new(std::iter::once(Ok(CorpusItem::Skipped(path, reason.to_owned()))));
        }
        let name = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
        match (CorpusFile { path: &path, name, in_folder: true }).read(&fields, &limits) {
            Ok(items) => Box::new(items.map(skip_unsupported)),
            Err(error) => Box::new(std::iter::once(skip_unsupported(Err(error)))),
        }
    })))
}

fn files(root: &Path) -> Result<Vec<PathBuf>, IndexError> {
    let visible = |entry: &DirEntry| entry.depth() == 0 || !entry.file_name().to_string_lossy().starts_with('.');
    let mut files = Vec::new();
    // Sorted, because the order of a directory differs between machines, and passages are numbered in this order.
    for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(visible) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(root).to_owned();
            IndexError::Io { action: "read", path, source: error.into() }
        })?;
        // `is_file` follows links to files. The walk itself follows no links, so a cycle of folders ends.
        if entry.path().is_file() {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

fn skip_unsupported(item: Result<CorpusItem, IndexError>) -> Result<CorpusItem, IndexError> {
    match item {
        Err(IndexError::UnsupportedFile { path, message }) => Ok(CorpusItem::Skipped(path, message)),
        other => other,
    }
}

/// Files that describe a Hugging Face data set.
const DESCRIPTIONS: [&str; 4] = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];

/// Card of a Hugging Face data set.
const CARD: &str = "README.md";

/// Kind of a folder, by the files in it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DatasetKind {
    /// Any files.
    Files,
    /// A Hugging Face data set: records, and files about them.
    HuggingFace,
    /// A BEIR data set: a corpus, questions and judgments.
    Beir(PathBuf),
}

impl DatasetKind {
    fn of(root: &Path, files: &[PathBuf]) -> DatasetKind {
        let at_root = |name: &str| root.join(name);
        let has = |name: &str| files.contains(&at_root(name));
        let corpus = ["corpus.jsonl", "corpus.jsonl.gz", "corpus.jsonl.zst"].into_iter().find(|name| has(name));
        let questions = ["queries.jsonl", "queries.jsonl.gz", "queries.jsonl.zst"].into_iter().any(has);
        if let Some(corpus) = corpus.filter(|_| questions) {
            return DatasetKind::Beir(at_root(corpus));
        }
        let described = DESCRIPTIONS.into_iter().any(has);
        let parquet = |path: &PathBuf| FileFormat::of(path).0 == FileFormat::Parquet;
        if described || files.iter().any(parquet) { DatasetKind::HuggingFace } else { DatasetKind::Files }
    }

    /// Returns the reason why a file is not read, if any. A description of a data set may look like a record.
    fn excludes(&self, root: &Path, path: &Path) -> Option<&'static str> {
        let name = path.file_name().unwrap_or_default();
        // Other texts are documents: a folder may hold Parquet among them.
        let beside = path == root.join(CARD) || DESCRIPTIONS.iter().any(|own| name == *own);
        match self {
            DatasetKind::Beir(corpus) if path != corpus => Some("not the corpus of this BEIR data set"),
            DatasetKind::HuggingFace if beside => Some("a description of this data set"),
            _ => None,
        }
    }
}
