//! The file of chosen algorithms.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Algorithm, AlgorithmScope, AlgorithmTable, MatMulShape};
use crate::durable_file;

/// Maximum size of the file in bytes; a larger one is not read.
const MAX_BYTES: u64 = 8 << 20;

/// A file with the algorithms chosen in one scope. It only saves time: a missing or broken file, or one of another
/// scope, is the same as an empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlgorithmFile(PathBuf);

#[derive(Serialize, Deserialize)]
struct Content {
    scope: AlgorithmScope,
    chosen: Vec<ChosenAlgorithm>,
}

#[derive(Serialize, Deserialize)]
struct ChosenAlgorithm {
    shape: MatMulShape,
    algorithm: Option<Algorithm>,
}

impl AlgorithmFile {
    /// Names a file, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the algorithms that were chosen in `scope`, an empty table if there are none.
    pub fn read(&self, scope: &AlgorithmScope) -> AlgorithmTable {
        let content = match self.content() {
            Ok(content) => content,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %self.0.display(), "cannot read the algorithms, choosing again: {error}");
                }
                return AlgorithmTable::default();
            }
        };
        if content.scope != *scope {
            tracing::info!(path = %self.0.display(), "algorithms are those of another GPU or version; choosing again");
            return AlgorithmTable::default();
        }
        AlgorithmTable(content.chosen.into_iter().map(|chosen| (chosen.shape, chosen.algorithm)).collect())
    }

    fn content(&self) -> io::Result<Content> {
        let mut bytes = Vec::new();
        let read = File::open(&self.0)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if read as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("more than {MAX_BYTES} bytes")));
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Writes a table in place of the content. A crash leaves the old file or the new one.
    ///
    /// # Errors
    /// If the folder cannot be created, or the file cannot be written.
    pub fn write(&self, scope: &AlgorithmScope, table: &AlgorithmTable) -> io::Result<()> {
        let chosen = table.0.iter().map(|(&shape, &algorithm)| ChosenAlgorithm { shape, algorithm }).collect();
        let bytes = serde_json::to_vec(&Content { scope: scope.clone(), chosen })?;
        if let Some(folder) = self.0.parent() {
            fs::create_dir_all(folder)?;
        }
        durable_file::replace(&self.0, &bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::OutputKind;
    use super::super::tests::{algorithm, shape};
    use super::*;

    fn scope(library: &str) -> AlgorithmScope {
        AlgorithmScope { gpu: "NVIDIA H200".to_owned(), driver: "13.0".to_owned(), library: library.to_owned() }
    }

    #[test]
    fn what_is_written_is_read_in_the_same_scope_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let file = AlgorithmFile::new(folder.path().join("cuda/algorithms.json"));
        assert!(file.read(&scope("13.0.2")).is_empty(), "there is none yet");
        let mut table = AlgorithmTable::default();
        table.insert(shape(1, 128, OutputKind::Half), Some(algorithm(u64::MAX)));
        table.insert(shape(8, 128, OutputKind::Sum), None);
        file.write(&scope("13.0.2"), &table).unwrap();
        assert_eq!(file.read(&scope("13.0.2")), table);
        assert!(file.read(&scope("13.1.0")).is_empty());
        let left: Vec<_> = fs::read_dir(file.path().parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_file_from_before_there_were_other_formats_is_of_bf16() {
        let shape: MatMulShape =
            serde_json::from_str(r#"{"inner":64,"columns":128,"output":"half","rows":1}"#).unwrap();
        assert_eq!(shape, super::super::tests::shape(1, 128, OutputKind::Half));
    }

    #[test]
    fn a_broken_file_is_as_good_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = AlgorithmFile::new(folder.path().join("algorithms.json"));
        let mut table = AlgorithmTable::default();
        table.insert(shape(1, 128, OutputKind::Half), Some(algorithm(7)));
        file.write(&scope("13.0.2"), &table).unwrap();
        let whole = fs::read(file.path()).unwrap();
        for broken in [&whole[..whole.len() / 2], b"", b"{}", b"\xff\xfe", &vec![b' '; MAX_BYTES as usize + 1]] {
            fs::write(file.path(), broken).unwrap();
            assert!(file.read(&scope("13.0.2")).is_empty());
        }
        file.write(&scope("13.0.2"), &table).unwrap();
        assert_eq!(file.read(&scope("13.0.2")), table);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_that_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let file = AlgorithmFile::new(folder.path().join("algorithms.json"));
        fs::create_dir(file.path()).unwrap();
        assert!(file.write(&scope("1"), &AlgorithmTable::default()).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(file.read(&scope("1")).is_empty());
    }
}
