//! Texts of files, in sections, before they are split into chunks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{Compression, FileFormat, extension};
use super::read_limits::{ReadLimits, ReadStop};
use super::{LONGEST_RECORD, docx, html, markdown, pdf, source_file};
use crate::error::IndexError;
use crate::location::Location;

/// Maximum size in bytes of a file whose format may contain images as well as text.
const LARGEST_CONTAINER: usize = 256 << 20;

/// Maximum length of a title in characters. Every chunk has a copy of the title.
const LONGEST_TITLE: usize = 500;

/// Text of a file.
pub(super) struct Prose {
    pub(super) file: Arc<Path>,
    /// Name of the file, from which the IDs of its chunks are made.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) sections: Vec<Section>,
}

/// Part of a text under one heading, or a page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Section {
    /// Headings above the section, from the outermost to its own.
    pub(super) headings: Vec<String>,
    /// Number of the page in the file, from 1. `None` for files without pages.
    pub(super) page: Option<u32>,
    /// First line of the section in the file; 1 for files without lines.
    pub(super) line: u64,
    pub(super) text: String,
    /// If `true`, the text is Markdown.
    pub(super) markdown: bool,
}

/// Title and sections of a file. An empty title stands for the name of the file.
pub(super) type Sections = (String, Vec<Section>);

/// Reason why a file gives no text.
#[derive(Debug)]
pub(super) enum ProseFault {
    /// The file does not have the format that its name indicates.
    Damaged(String),
    /// The file is intact but not supported. The message says what to do.
    Unsupported(String),
    /// The reading was ended.
    Stopped(ReadStop),
}

impl From<ReadStop> for ProseFault {
    fn from(stop: ReadStop) -> ProseFault {
        ProseFault::Stopped(stop)
    }
}

/// Reads the text of a file. The IDs of its chunks are made from `name`.
///
/// # Errors
/// If the file cannot be opened, is too large or unsupported, does not have the format that its name indicates, or is not
/// read to its end.
pub(super) fn read(path: &Path, name: String, limits: &ReadLimits) -> Result<Prose, IndexError> {
    let (format, compression) = FileFormat::of(path);
    let limit = if matches!(format, FileFormat::Docx | FileFormat::Pdf) { LARGEST_CONTAINER } else { LONGEST_RECORD };
    let bytes = source_file::read_whole(path, compression, limit, limits)?;
    let file: Arc<Path> = path.into();
    let bad = |fault| match fault {
        ProseFault::Damaged(message) => {
            IndexError::BadRecord { location: Location { file: file.clone(), line: 1 }, message }
        }
        ProseFault::Unsupported(message) => IndexError::UnsupportedFile { path: path.to_owned(), message },
        ProseFault::Stopped(stop) => stop.of_file(path),
    };
    let (title, sections) = match format {
        FileFormat::Html => {
            let is_xhtml = extension(&uncompressed(path, compression)) == "xhtml";
            html::sections(&bytes, is_xhtml).map_err(bad)?
        }
        FileFormat::Docx => docx::sections(&bytes).map_err(bad)?,
        FileFormat::Pdf => pdf::sections(&bytes, limits).map_err(bad)?,
        FileFormat::Markdown => markdown::sections(utf8(&bytes, &file)?).map_err(bad)?,
        _ => {
            let text = utf8(&bytes, &file)?.to_owned();
            (String::new(), vec![Section { line: 1, text, ..Section::default() }])
        }
    };
    let title = if title.trim().is_empty() {
        stem(path, compression)
    } else {
        title.trim().chars().take(LONGEST_TITLE).collect()
    };
    Ok(Prose { file, name, title, sections })
}

fn utf8<'a>(bytes: &'a [u8], file: &Arc<Path>) -> Result<&'a str, IndexError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + line_breaks(&bytes[..error.valid_up_to()]);
        let location = Location { file: file.clone(), line };
        IndexError::BadRecord { location, message: "invalid UTF-8".to_owned() }
    })
}

/// Number of line breaks.
pub(super) fn line_breaks(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

fn stem(path: &Path, compression: Compression) -> String {
    uncompressed(path, compression).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the path without the extension of its compression.
fn uncompressed(path: &Path, compression: Compression) -> PathBuf {
    if compression == Compression::None { path.to_owned() } else { path.with_extension("") }
}
