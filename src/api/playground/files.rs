//! Files of the page, embedded in the program.

use std::io::Write;
use std::sync::LazyLock;

use axum::body::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! built {
    ($name:literal) => {
        include_bytes!(concat!("../../../page/built/", $name))
    };
}

/// Files below `/page/`, with their names and media types.
const FILES: [(&str, &str, &[u8]); 7] = [
    ("app.js", SCRIPT, built!("app.js")),
    ("chunk.js", SCRIPT, built!("chunk.js")),
    ("explore.js", SCRIPT, built!("explore.js")),
    ("saved.js", SCRIPT, built!("saved.js")),
    ("app.css", "text/css; charset=utf-8", built!("app.css")),
    ("icon.svg", "image/svg+xml", built!("icon.svg")),
    ("licenses.txt", "text/plain; charset=utf-8", built!("licenses.txt")),
];

/// The page itself.
pub(super) static INDEX: LazyLock<PageFile> =
    LazyLock::new(|| PageFile::new("index.html", "text/html; charset=utf-8", built!("index.html")));

static PAGE_FILES: LazyLock<Vec<PageFile>> =
    LazyLock::new(|| FILES.iter().map(|&(name, kind, content)| PageFile::new(name, kind, content)).collect());

/// File of the page, ready to be sent.
pub(super) struct PageFile {
    name: &'static str,
    /// Media type.
    pub(super) kind: &'static str,
    /// Content as it was built.
    pub(super) content: &'static [u8],
    /// Content in gzip's format.
    pub(super) compressed: Bytes,
    /// Quoted tag of the content, for `etag`.
    pub(super) tag: String,
}

impl PageFile {
    fn new(name: &'static str, kind: &'static str, content: &'static [u8]) -> PageFile {
        let hash = blake3::hash(content).to_hex();
        PageFile { name, kind, content, compressed: compress(content), tag: format!("\"{}\"", &hash[..16]) }
    }
}

/// Returns the file of this name.
pub(super) fn find(name: &str) -> Option<&'static PageFile> {
    PAGE_FILES.iter().find(|file| file.name == name)
}

fn compress(content: &[u8]) -> Bytes {
    // Done once per process, so the slowest level costs nothing later.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail.
    let written = encoder.write_all(content);
    written.and_then(|()| encoder.finish()).map(Bytes::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::{Path, PathBuf};

    use sha2::{Digest, Sha256};

    use super::*;

    /// Largest size of all files, compressed, in bytes.
    const LIMIT: usize = 300_000;

    fn text(name: &str) -> &'static str {
        std::str::from_utf8(find(name).unwrap().content).unwrap()
    }

    #[test]
    fn the_page_is_small_and_names_nothing_outside_of_itself() {
        let sizes = PAGE_FILES.iter().chain([&*INDEX]).map(|file| file.compressed.len());
        let total: usize = sizes.sum();
        assert!(total > 20_000 && total < LIMIT, "{total} bytes");
        let page = std::str::from_utf8(INDEX.content).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        for part in ["http:", "https:", "src=\"//", "@import", "style=", " onload", "<iframe", "<base", "<script>"] {
            assert!(!page.contains(part), "{part}");
        }
        for name in ["/page/app.js", "/page/app.css", "/page/icon.svg"] {
            assert!(page.contains(name), "{name}");
        }
        let style = text("app.css");
        assert!(!style.contains("url(") && !style.contains("@import"), "a style fetches something");
        assert!(text("app.js").contains("\"./chunk.js\""));
        for name in ["app.js", "chunk.js", "explore.js"] {
            for call in ["eval(", "document.write", "from\"http", "import(\"http", "fetch(\"http", "importScripts"] {
                assert!(!text(name).contains(call), "{call} in {name}");
            }
        }
        assert!(!text("saved.js").contains("import("), "a saved run fetches a part of itself");
    }

    #[test]
    fn no_source_turns_text_into_markup_or_keeps_a_key() {
        let sources = sources(&root().join("src"));
        assert!(sources.len() > 30);
        for path in sources {
            let source = fs::read_to_string(&path).unwrap();
            for call in
                ["innerHTML", "insertAdjacentHTML", "createContextualFragment", "DOMParser", "setHTML", "dangerously"]
            {
                assert!(!source.contains(call), "{call} in {}", path.display());
            }
            for store in ["localStorage", "sessionStorage", "document.cookie"] {
                assert!(!source.contains(store), "{store} in {}", path.display());
            }
        }
    }

    #[test]
    fn licenses_of_all_bundled_packages_are_kept() {
        for package in ["preact", "@preact/signals", "@preact/signals-core", "marked", "sigma", "graphology"] {
            assert!(text("licenses.txt").contains(&format!("\n{package} ")), "{package}");
        }
    }

    /// Compares the hash in `page/built` with that of the sources, as `page/build` computes it.
    #[test]
    fn what_is_embedded_was_built_from_the_sources() {
        let root = root();
        let mut paths = sources(&root.join("src"));
        paths.extend([root.join("build"), root.join("package-lock.json")]);
        let name = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        paths.sort_by_key(|path| name(path));
        let mut hash = Sha256::new();
        for path in paths {
            let content = fs::read(&path).unwrap();
            hash.update(format!("{}\0{}\0", name(&path), content.len()));
            hash.update(content);
        }
        let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let built = fs::read_to_string(root.join("built/sources.sha256")).unwrap();
        assert_eq!(built.trim(), hash, "run `page/build` and commit `page/built`");
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("page")
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }
}
