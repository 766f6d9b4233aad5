//! Formats of corpus files, by the file's name.

use std::path::Path;

/// Compression of a file, by the last extension of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstandard,
}

/// Format of a corpus file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    /// JSONL.
    Lines,
    /// A JSON list or JSONL: the content decides, since JSONL is often named `.json`.
    Json,
    /// CSV or TSV.
    Table,
    Parquet,
    Markdown,
    Text,
    Html,
    Docx,
    Pdf,
    /// A format known by name that no reader reads, with what to do about it.
    Unsupported(&'static str),
    /// An extension without a known meaning, or none.
    Unknown,
}

/// Extensions that are read, for messages.
pub(crate) const READABLE: &str =
    "JSONL, JSON lists, CSV, TSV, Parquet, Markdown, text, HTML, DOCX and PDF, also as .gz or .zst";

const FORMATS: &[(&[&str], FileFormat)] = &[
    (&["jsonl", "ndjson"], FileFormat::Lines),
    (&["json"], FileFormat::Json),
    (&["csv", "tsv", "tab"], FileFormat::Table),
    (&["parquet"], FileFormat::Parquet),
    (&["md", "markdown"], FileFormat::Markdown),
    (&["txt", "text"], FileFormat::Text),
    (&["html", "htm", "xhtml"], FileFormat::Html),
    (&["docx"], FileFormat::Docx),
    (&["pdf"], FileFormat::Pdf),
    (&["arrow", "feather"], FileFormat::Unsupported("an Arrow file: write the data set as Parquet (`to_parquet`)")),
    (&["xlsx", "xls", "ods"], FileFormat::Unsupported("a spreadsheet: export its sheets as CSV")),
    (&["doc", "odt", "rtf"], FileFormat::Unsupported("a word processor's file: save it as DOCX or PDF")),
    (&["pptx", "ppt", "odp"], FileFormat::Unsupported("a presentation: export it as PDF")),
    (&["epub", "mobi"], FileFormat::Unsupported("an e-book: convert it to HTML")),
    (&["zip", "tar", "tgz", "7z", "rar"], FileFormat::Unsupported("an archive: unpack it and name its folder")),
    (&["bz2", "xz", "lz4", "br"], FileFormat::Unsupported("a compression that is not read: use .gz or .zst")),
    (&["pkl", "pickle", "pt", "npy", "npz"], FileFormat::Unsupported("a Python object: write its records as JSONL")),
    (&["db", "sqlite", "sqlite3"], FileFormat::Unsupported("a database: export its table as CSV or JSONL")),
    (&["xml"], FileFormat::Unsupported("an XML file: convert it to HTML or JSONL")),
    (
        &["png", "jpg", "jpeg", "gif", "webp", "svg", "bmp", "tif", "tiff", "ico"],
        FileFormat::Unsupported("an image: recognize its text first"),
    ),
    (&["mp3", "wav", "ogg", "mp4", "mov", "webm"], FileFormat::Unsupported("a recording: transcribe it first")),
];

impl FileFormat {
    /// Returns the format and the compression that a file's name tells.
    pub(super) fn of(path: &Path) -> (FileFormat, Compression) {
        let compression = match extension(path).as_str() {
            "gz" | "gzip" => Compression::Gzip,
            "zst" | "zstd" => Compression::Zstandard,
            _ => return (FileFormat::by_extension(&extension(path)), Compression::None),
        };
        (FileFormat::by_extension(&extension(&path.with_extension(""))), compression)
    }

    fn by_extension(extension: &str) -> FileFormat {
        let known = FORMATS.iter().find(|(extensions, _)| extensions.contains(&extension));
        known.map_or(FileFormat::Unknown, |(_, format)| *format)
    }

    /// Returns `true` for texts, which are always split into chunks.
    pub(super) fn is_prose(self) -> bool {
        matches!(self, FileFormat::Markdown | FileFormat::Text | FileFormat::Html | FileFormat::Docx | FileFormat::Pdf)
    }
}

/// Returns the extension in lower case, or an empty text.
pub(super) fn extension(path: &Path) -> String {
    path.extension().map(|extension| extension.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Returns `true` if the extension is that of a text, such as Markdown or PDF. [`Corpus::open`](super::Corpus::open)
/// splits such files into chunks.
pub fn is_prose(path: &Path) -> bool {
    FileFormat::of(path).0.is_prose()
}

/// Returns `true` if [`Corpus::open`](super::Corpus::open) reads an uncompressed file of this name as JSON.
pub fn is_json(path: &Path) -> bool {
    let (format, compression) = FileFormat::of(path);
    compression == Compression::None && matches!(format, FileFormat::Lines | FileFormat::Json | FileFormat::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_format_and_compression() {
        for (name, expected) in [
            ("a.jsonl", (FileFormat::Lines, Compression::None)),
            ("a.JSON.gz", (FileFormat::Json, Compression::Gzip)),
            ("b/a.tsv.zst", (FileFormat::Table, Compression::Zstandard)),
            ("a.b.md", (FileFormat::Markdown, Compression::None)),
            ("a.gz", (FileFormat::Unknown, Compression::Gzip)),
            ("README", (FileFormat::Unknown, Compression::None)),
        ] {
            assert_eq!(FileFormat::of(Path::new(name)), expected, "{name}");
        }
        assert!(matches!(FileFormat::of(Path::new("a.tar.gz")).0, FileFormat::Unsupported(_)));
        assert!(is_json(Path::new("a.jsonl")) && is_json(Path::new("a")) && !is_json(Path::new("a.jsonl.gz")));
        assert!(is_prose(Path::new("a.PDF")) && !is_prose(Path::new("a.csv")));
    }
}
