//! Addresses of snapshots.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;

use super::SnapshotError;
use super::connector::UreqConnector;

/// Place of published snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotLocation {
    /// Folder, for example of a network file system.
    Folder(PathBuf),
    /// Bucket of S3 or a compatible server, and the beginning of the names in it.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Beginning of the names, without a slash at its ends.
        prefix: String,
    },
}

impl SnapshotLocation {
    /// Returns the place that `text` names by a URL. `None` for a path.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn of_url(text: &str) -> Result<Option<SnapshotLocation>, SnapshotError> {
        if text.contains("://") { text.parse().map(Some) } else { Ok(None) }
    }

    /// Last part of the address, for names.
    pub fn name(&self) -> String {
        match self {
            Self::Folder(dir) => dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            Self::S3 { bucket, prefix } => {
                prefix.rsplit('/').find(|part| !part.is_empty()).unwrap_or(bucket).to_owned()
            }
        }
    }

    /// Opens the object store. The credentials, region and endpoint of S3 come from the usual `AWS_…` variables.
    pub(super) fn open(&self) -> Result<Arc<dyn ObjectStore>, SnapshotError> {
        match self {
            Self::Folder(dir) => {
                fs::create_dir_all(dir).map_err(SnapshotError::file("write", dir))?;
                Ok(Arc::new(LocalFileSystem::new_with_prefix(dir)?.with_fsync(true)))
            }
            Self::S3 { bucket, prefix } => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                let store = builder.with_http_connector(UreqConnector::default()).build()?;
                Ok(Arc::new(PrefixStore::new(store, prefix.as_str())))
            }
        }
    }
}

impl FromStr for SnapshotLocation {
    type Err = SnapshotError;

    fn from_str(text: &str) -> Result<Self, SnapshotError> {
        let wrong = || SnapshotError::Location(text.to_owned());
        if let Some(path) = text.strip_prefix("file://") {
            return if path.starts_with('/') { Ok(Self::Folder(path.into())) } else { Err(wrong()) };
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(wrong());
            }
            return Ok(Self::S3 { bucket: bucket.to_owned(), prefix: prefix.trim_matches('/').to_owned() });
        }
        if text.is_empty() || text.contains("://") { Err(wrong()) } else { Ok(Self::Folder(Path::new(text).into())) }
    }
}

impl fmt::Display for SnapshotLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(dir) => write!(f, "{}", dir.display()),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        let s3 = |bucket: &str, prefix: &str| SnapshotLocation::S3 { bucket: bucket.into(), prefix: prefix.into() };
        let read = |text: &str| text.parse::<SnapshotLocation>();
        assert_eq!(read("s3://b/x/y/").unwrap(), s3("b", "x/y"));
        assert_eq!(read("s3://b").unwrap(), s3("b", ""));
        assert_eq!(read("file:///srv/x").unwrap(), SnapshotLocation::Folder("/srv/x".into()));
        assert_eq!(read("srv/x").unwrap(), SnapshotLocation::Folder("srv/x".into()));
        for wrong in ["", "s3://", "s3:///x", "gs://b/x", "file://x"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(SnapshotLocation::of_url("corpus.index").unwrap(), None);
        assert_eq!((s3("b", "x/y").name(), s3("b", "").name()), ("y".into(), "b".into()));
    }
}
