//! Opening of a state directory or a database.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use waymark_models::file_lock;

use super::retention::{StateLimits, keep_within};
use super::{Dialect, SqlStore, Tables, migration};
use crate::store::StoreError;

/// Maximum number of connections to the database.
const CONNECTIONS: u32 = 8;
/// Maximum time to wait for a connection.
const ACQUIRE: Duration = Duration::from_secs(3);

/// Name of the database in a state directory.
const FILE: &str = "state.sqlite";
/// Name of the file whose lock the using process holds.
const LOCK: &str = "lock";

impl SqlStore {
    /// Opens the state directory `dir`, which is created if it is missing. Records survive a crash of the machine.
    ///
    /// # Errors
    /// If the directory cannot be used, or another process uses it.
    pub async fn open_directory(dir: &Path, limits: StateLimits) -> Result<SqlStore, StoreError> {
        let failed = |source| StoreError::Directory { path: dir.to_owned(), source };
        // Locked before the database is opened, so a second server changes nothing in it.
        let lock = lock(dir)?;
        let path = std::path::absolute(dir.join(FILE)).map_err(failed)?;
        touch_private(&path).map_err(failed)?;
        let text = path.to_str().ok_or_else(|| failed(io::Error::other("its path is not valid UTF-8")))?;
        // Encoded, because `?` and `%` in a path have a meaning in a URL.
        let url = format!("sqlite://{}?mode=rwc", percent_encoded(text));
        Self::open(&url, Dialect::Sqlite, Some(lock), limits).await
    }

    /// Checks that no other process uses the state directory `dir`. Creates nothing.
    ///
    /// # Errors
    /// If another process uses the directory, or its lock cannot be opened.
    pub fn check_directory(dir: &Path) -> Result<(), StoreError> {
        // Every server leaves the lock file behind, so nobody uses a directory without one.
        if dir.join(LOCK).exists() { lock(dir).map(drop) } else { Ok(()) }
    }

    /// Opens the PostgreSQL database at `url`.
    ///
    /// # Errors
    /// If the database cannot be reached, or its tables cannot be created.
    pub async fn open_postgres(url: &str, limits: StateLimits) -> Result<SqlStore, StoreError> {
        Self::open(url, Dialect::Postgres, None, limits).await
    }

    async fn open(
        url: &str,
        dialect: Dialect,
        lock: Option<File>,
        limits: StateLimits,
    ) -> Result<SqlStore, StoreError> {
        install_default_drivers();
        let options = AnyPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(ACQUIRE);
        let options = options.after_connect(move |connection, _| {
            Box::pin(async move {
                if dialect == Dialect::Sqlite {
                    // Readers do not wait for the writer, and a commit is on disk when it returns.
                    sqlx::query("PRAGMA journal_mode = WAL").execute(&mut *connection).await?;
                    sqlx::query("PRAGMA synchronous = FULL").execute(&mut *connection).await?;
                }
                Ok(())
            })
        });
        let pool = options.connect(url).await?;
        migration::migrate(&pool, dialect).await?;
        let writer = (dialect == Dialect::Sqlite).then(Arc::default);
        let tables = Tables { pool, dialect, writer, sizes: Arc::default() };
        if let Err(error) = tables.trim(limits).await {
            // The records can be used all the same, and the next pass tries again.
            tracing::warn!(%error, "cannot remove old records of the state");
        }
        let retention = tokio::spawn(keep_within(tables.clone(), limits)).abort_handle();
        Ok(SqlStore { tables, _lock: lock, retention })
    }
}

/// Takes the lock of the state directory `dir`, which is created if it is missing. The lock ends when the file is
/// closed.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let failed = |source| StoreError::Directory { path: dir.to_owned(), source };
    create_private(dir).map_err(failed)?;
    file_lock::try_take(&dir.join(LOCK)).map_err(failed)?.ok_or_else(|| StoreError::InUse(dir.to_owned()))
}

/// Creates a directory that only its owner can read: it will hold questions and answers.
fn create_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(dir)
}

/// Creates the file of the database, if it is missing, such that only its owner can read it: the directory may be an
/// older one that others can read. SQLite gives its other files the same permissions.
fn touch_private(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// Encodes a path for a URL.
fn percent_encoded(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            text.push(byte.into());
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use sqlx::Row;

    use super::*;

    #[tokio::test]
    async fn a_commit_is_on_disk_when_it_returns_on_every_connection() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqlStore::open_directory(dir.path(), StateLimits::default()).await.unwrap();
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = store.tables.pool.acquire().await.unwrap();
            let row = sqlx::query("PRAGMA synchronous").fetch_one(&mut *connection).await.unwrap();
            // The number of `FULL`.
            assert_eq!(row.try_get::<i64, _>(0).unwrap(), 2);
            connections.push(connection);
        }
    }
}
