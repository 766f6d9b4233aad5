//! Reads a folder of Markdown and text files, or a single such file, in chunks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use text_splitter::{MarkdownSplitter, TextSplitter};
use walkdir::{DirEntry, WalkDir};

use super::{CorpusItem, CorpusOptions, CorpusRecord, Document};
use crate::error::IndexError;
use crate::location::Location;

/// Default chunk size in characters, which stays within the 256 tokens that small sentence embedders read.
const CHUNK: usize = 1000;

/// Returns `true` if the file extension is that of Markdown or plain text. [`Corpus::open`](super::Corpus::open) relies
/// on the extension alone.
pub fn is_prose(path: &Path) -> bool {
    is_markdown(path) || has_ending(path, &["txt", "text"])
}

fn is_markdown(path: &Path) -> bool {
    has_ending(path, &["md", "markdown"])
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|ending| endings.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Reads all Markdown and text files below `root` in the order of their names, without hidden files. Follows links to
/// files, but not links to folders.
///
/// A chunk's ID is the file's path relative to `root`, `#`, and the number of the chunk in the file, so the same file
/// always gives the same IDs. Its title is the first heading of a Markdown file, or else the file's name.
pub(super) fn read(
    root: &Path,
    options: &CorpusOptions,
) -> Result<impl Iterator<Item = Result<CorpusItem, IndexError>> + Send + use<>, IndexError> {
    let root = root.to_owned();
    let chunk = options.chunk.unwrap_or(CHUNK).max(1);
    let files = files(&root)?;
    Ok(files.into_iter().flat_map(move |file| match chunks(&root, &file, chunk) {
        Ok(found) => found.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }))
}

fn files(root: &Path) -> Result<Vec<PathBuf>, IndexError> {
    let visible = |entry: &DirEntry| entry.depth() == 0 || !entry.file_name().to_string_lossy().starts_with('.');
    let mut files = Vec::new();
    // The order of a directory differs between machines, and with it the numbers of the passages.
    for entry in WalkDir::new(root).sort_by_file_name().into_iter().filter_entry(visible) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(root).to_owned();
            IndexError::Io { action: "read", path, source: error.into() }
        })?;
        // `is_file` follows links to files. The walk follows none, so that a circle of folders ends.
        if entry.path().is_file() && is_prose(entry.path()) {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// Returns the chunks of a file, followed by their number. An empty file has none.
fn chunks(root: &Path, file: &Path, size: usize) -> Result<Vec<CorpusItem>, IndexError> {
    let bytes = fs::read(file).map_err(IndexError::io("read", file))?;
    let shared: Arc<Path> = file.into();
    let text = std::str::from_utf8(&bytes).map_err(|error| IndexError::BadRecord {
        location: Location { file: shared.clone(), line: 1 + line_breaks(&bytes[..error.valid_up_to()]) },
        message: "invalid UTF-8".to_owned(),
    })?;
    let name = match file.strip_prefix(root) {
        Ok(relative) if !relative.as_os_str().is_empty() => relative.to_string_lossy(),
        _ => file.file_name().unwrap_or(file.as_os_str()).to_string_lossy(),
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Offsets of chunks count from behind the byte order mark; lines count from the file's first byte.
    let skipped = bytes.len() - text.len();
    let title = title(file, text);
    // Chunks come in text order, so lines are counted from the previous chunk on: one pass over the file in total.
    let mut reached = 0;
    let mut line = 1;
    let records = split(file, text, size).into_iter().enumerate().map(|(number, (offset, chunk))| {
        line += line_breaks(&bytes[reached..skipped + offset]);
        reached = skipped + offset;
        CorpusItem::Record(CorpusRecord {
            location: Location { file: shared.clone(), line },
            document: Document {
                triples: None,
                id: format!("{name}#{}", number + 1),
                title: title.clone(),
                text: chunk.to_owned(),
                metadata: None,
            },
            from_content: false,
        })
    });
    let mut found: Vec<CorpusItem> = records.collect();
    let count = found.len() as u64;
    found.push(CorpusItem::Chunked(name.into_owned(), count));
    Ok(found)
}

fn line_breaks(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

fn split<'a>(file: &Path, text: &'a str, size: usize) -> Vec<(usize, &'a str)> {
    if is_markdown(file) {
        MarkdownSplitter::new(size).chunk_indices(text).collect()
    } else {
        TextSplitter::new(size).chunk_indices(text).collect()
    }
}

fn title(file: &Path, text: &str) -> String {
    let heading = || text.lines().find_map(|line| line.strip_prefix("# ")).map(|line| line.trim().to_owned());
    let stem = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if is_markdown(file) { heading().filter(|title| !title.is_empty()).unwrap_or_else(stem) } else { stem() }
}
