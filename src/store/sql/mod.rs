//! Store in a database: a SQLite file in a state directory, or PostgreSQL. Both run the same statements.
//!
//! | file | content |
//! |---|---|
//! | `open` | opening a directory or a database |
//! | `migration` | versions of the schema |
//! | `retention` | removal of the oldest records beyond the limits |

mod migration;
mod open;
mod retention;
#[cfg(test)]
pub(super) mod testing;

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{Any, AnyPool, Row, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::AbortHandle;

use super::record::{Owner, Record, RecordKey, RecordKind, RecordOrder, RecordRange};
use super::{Store, StoreError, StoreFuture, StoreSize};

pub use retention::StateLimits;

/// Maximum time of an operation, including the wait for a connection. An answer waits for its own record.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Kind of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Sqlite,
    Postgres,
}

/// Store in a database.
#[derive(Debug)]
pub struct SqlStore {
    tables: Tables,
    /// Held as long as the store exists, so no other process uses the directory.
    _lock: Option<File>,
    retention: AbortHandle,
}

impl Drop for SqlStore {
    fn drop(&mut self) {
        self.retention.abort();
    }
}

/// Connections to a database, and the sizes of its tables; clones share them.
#[derive(Debug, Clone)]
struct Tables {
    pool: AnyPool,
    dialect: Dialect,
    /// Lock for the one writer that SQLite allows. Without it, SQLite would have the others poll. `None` for
    /// PostgreSQL.
    writer: Option<Arc<Mutex<()>>>,
    /// Sizes by kind, as of the last removal of old records.
    sizes: Arc<std::sync::Mutex<HashMap<RecordKind, StoreSize>>>,
}

/// Runs an operation under the timeout.
async fn bounded<T>(work: impl Future<Output = Result<T, StoreError>> + Send) -> Result<T, StoreError> {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or(Err(StoreError::Timeout(TIMEOUT)))
}

/// Returns the tenant column of an owner.
fn tenant(owner: Owner) -> String {
    owner.map_or_else(String::new, |owner| owner.to_string())
}

/// Returns a size as the type of its column.
fn size(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Tables {
    /// Waits for the turn to write. The turn ends when the result is dropped.
    async fn turn(&self) -> Option<OwnedMutexGuard<()>> {
        match &self.writer {
            Some(writer) => Some(Arc::clone(writer).lock_owned().await),
            None => None,
        }
    }

    async fn put(&self, record: Record, children: Vec<Record>) -> Result<(), StoreError> {
        // A parent counts the bytes of its children, because retention looks at parents alone.
        let bytes = children.iter().map(|child| child.body.len()).sum();
        let _turn = self.turn().await;
        let mut transaction = self.pool.begin().await?;
        // Children of a replaced record must not become those of the new one.
        if record.key.kind.child().is_some() {
            delete(&mut transaction, &record.key).await?;
        }
        insert(&mut transaction, record, bytes, TakenKey::Replace).await?;
        for child in children {
            insert(&mut transaction, child, 0, TakenKey::Replace).await?;
        }
        Ok(transaction.commit().await?)
    }

    async fn insert(&self, record: Record) -> Result<bool, StoreError> {
        let _turn = self.turn().await;
        let mut transaction = self.pool.begin().await?;
        let inserted = insert(&mut transaction, record, 0, TakenKey::Keep).await?;
        transaction.commit().await?;
        Ok(inserted)
    }

    async fn update(&self, key: &RecordKey, body: Vec<u8>) -> Result<bool, StoreError> {
        // Only the difference is added, because `bytes` counts the children as well.
        let statement = "UPDATE record SET bytes = bytes + $1 - LENGTH(body), body = $2 \
                         WHERE kind = $3 AND tenant = $4 AND parent = $5 AND id = $6";
        let query = sqlx::query(statement).bind(size(body.len())).bind(body);
        let query = query.bind(key.kind.name()).bind(tenant(key.owner)).bind(&key.parent).bind(&key.id);
        let _turn = self.turn().await;
        Ok(query.execute(&self.pool).await?.rows_affected() > 0)
    }

    async fn append(&self, parent: &RecordKey, children: Vec<Record>) -> Result<bool, StoreError> {
        let Some(kind) = parent.kind.child() else { return Ok(false) };
        let bytes: usize = children.iter().map(|child| child.body.len()).sum();
        let youngest = children.iter().map(|child| child.position).max().unwrap_or(0);
        let _turn = self.turn().await;
        let mut transaction = self.pool.begin().await?;
        // Written first: the row is locked until the end, so appends of two servers do not mix. A record is as
        // young as its last child. It never becomes older, although the clocks of servers differ.
        let statement = "UPDATE record SET bytes = bytes + $1, position = CASE WHEN position < $2 THEN $2 ELSE position END \
                         WHERE kind = $3 AND tenant = $4 AND parent = '' AND id = $5";
        let query = sqlx::query(statement).bind(size(bytes)).bind(youngest);
        let query = query.bind(parent.kind.name()).bind(tenant(parent.owner)).bind(&parent.id);
        if query.execute(&mut *transaction).await?.rows_affected() == 0 {
            return Ok(false);
        }
        let statement = "SELECT COALESCE(MAX(position), 0) AS position FROM record \
                         WHERE kind = $1 AND tenant = $2 AND parent = $3";
        let query = sqlx::query(statement).bind(kind.name()).bind(tenant(parent.owner)).bind(&parent.id);
        let mut last: i64 = query.fetch_one(&mut *transaction).await?.try_get("position")?;
        for child in children {
            insert(&mut transaction, child.placed_after(&mut last), 0, TakenKey::Replace).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        let statement = "SELECT id, position, body FROM record \
                         WHERE kind = $1 AND tenant = $2 AND parent = $3 AND id = $4";
        let query = sqlx::query(statement).bind(key.kind.name()).bind(tenant(key.owner));
        let row = query.bind(&key.parent).bind(&key.id).fetch_optional(&self.pool).await?;
        row.map(|row| record(&row, key.kind, key.owner, &key.parent)).transpose()
    }

    async fn list(&self, range: &RecordRange) -> Result<Vec<Record>, StoreError> {
        let (statement, first) = match range.order {
            RecordOrder::Ascending => (
                "SELECT id, position, body FROM record WHERE kind = $1 AND tenant = $2 AND parent = $3 \
                 AND position > $4 ORDER BY position ASC LIMIT $5",
                i64::MIN,
            ),
            RecordOrder::Descending => (
                "SELECT id, position, body FROM record WHERE kind = $1 AND tenant = $2 AND parent = $3 \
                 AND position < $4 ORDER BY position DESC LIMIT $5",
                i64::MAX,
            ),
        };
        let query = sqlx::query(statement).bind(range.kind.name()).bind(tenant(range.owner)).bind(&range.parent);
        let rows = query.bind(range.after.unwrap_or(first)).bind(size(range.limit)).fetch_all(&self.pool).await?;
        rows.iter().map(|row| record(row, range.kind, range.owner, &range.parent)).collect()
    }

    async fn remove(&self, key: &RecordKey) -> Result<bool, StoreError> {
        let _turn = self.turn().await;
        let mut transaction = self.pool.begin().await?;
        let removed = delete(&mut transaction, key).await?;
        transaction.commit().await?;
        Ok(removed)
    }
}

/// Treatment of a record whose key is taken.
#[derive(Debug, Clone, Copy)]
enum TakenKey {
    /// The new record replaces the old one.
    Replace,
    /// The old record stays.
    Keep,
}

/// Writes a record whose children take `below` bytes. Returns `false` if the key was taken, and the old record stays.
async fn insert(
    transaction: &mut Transaction<'static, Any>,
    record: Record,
    below: usize,
    taken: TakenKey,
) -> Result<bool, StoreError> {
    let statement = match taken {
        TakenKey::Replace => {
            "INSERT INTO record (kind, tenant, parent, id, position, bytes, body) VALUES ($1, $2, $3, $4, $5, $6, $7) \
             ON CONFLICT (kind, tenant, parent, id) DO UPDATE \
             SET position = excluded.position, bytes = excluded.bytes, body = excluded.body"
        }
        TakenKey::Keep => {
            "INSERT INTO record (kind, tenant, parent, id, position, bytes, body) VALUES ($1, $2, $3, $4, $5, $6, $7) \
             ON CONFLICT (kind, tenant, parent, id) DO NOTHING"
        }
    };
    let Record { key, position, body } = record;
    let query = sqlx::query(statement).bind(key.kind.name()).bind(tenant(key.owner)).bind(key.parent).bind(key.id);
    let query = query.bind(position).bind(size(body.len() + below)).bind(body);
    Ok(query.execute(&mut **transaction).await?.rows_affected() > 0)
}

/// Deletes a record and its children. For a child, also subtracts its size from that of its parent.
async fn delete(transaction: &mut Transaction<'static, Any>, key: &RecordKey) -> Result<bool, StoreError> {
    // Runs before the row is deleted, because the statement reads the row's size.
    if let Some(parent) = key.of_parent() {
        let statement = "UPDATE record SET bytes = bytes - COALESCE((SELECT child.bytes FROM record AS child \
                         WHERE child.kind = $1 AND child.tenant = $2 AND child.parent = $3 AND child.id = $4), 0) \
                         WHERE kind = $5 AND tenant = $2 AND parent = '' AND id = $3";
        let query = sqlx::query(statement).bind(key.kind.name()).bind(tenant(key.owner)).bind(&key.parent);
        query.bind(&key.id).bind(parent.kind.name()).execute(&mut **transaction).await?;
    }
    let statement = "DELETE FROM record WHERE kind = $1 AND tenant = $2 AND parent = $3 AND id = $4";
    let query = sqlx::query(statement).bind(key.kind.name()).bind(tenant(key.owner)).bind(&key.parent).bind(&key.id);
    let removed = query.execute(&mut **transaction).await?.rows_affected() > 0;
    if let Some(child) = key.kind.child() {
        let statement = "DELETE FROM record WHERE kind = $1 AND tenant = $2 AND parent = $3";
        let query = sqlx::query(statement).bind(child.name()).bind(tenant(key.owner)).bind(&key.id);
        query.execute(&mut **transaction).await?;
    }
    Ok(removed)
}

fn record(row: &AnyRow, kind: RecordKind, owner: Owner, parent: &str) -> Result<Record, StoreError> {
    let key = RecordKey { kind, owner, parent: parent.to_owned(), id: row.try_get("id")? };
    Ok(Record { key, position: row.try_get("position")?, body: row.try_get("body")? })
}

impl Store for SqlStore {
    fn put(&self, record: Record, children: Vec<Record>) -> StoreFuture<'_, ()> {
        Box::pin(bounded(self.tables.put(record, children)))
    }

    fn insert(&self, record: Record) -> StoreFuture<'_, bool> {
        Box::pin(bounded(self.tables.insert(record)))
    }

    fn update<'a>(&'a self, key: &'a RecordKey, body: Vec<u8>) -> StoreFuture<'a, bool> {
        Box::pin(bounded(self.tables.update(key, body)))
    }

    fn append<'a>(&'a self, parent: &'a RecordKey, children: Vec<Record>) -> StoreFuture<'a, bool> {
        Box::pin(bounded(self.tables.append(parent, children)))
    }

    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, Option<Record>> {
        Box::pin(bounded(self.tables.get(key)))
    }

    fn list<'a>(&'a self, range: &'a RecordRange) -> StoreFuture<'a, Vec<Record>> {
        Box::pin(bounded(self.tables.list(range)))
    }

    fn remove<'a>(&'a self, key: &'a RecordKey) -> StoreFuture<'a, bool> {
        Box::pin(bounded(self.tables.remove(key)))
    }

    fn size(&self, kind: RecordKind) -> StoreSize {
        let sizes = self.tables.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.get(&kind).copied().unwrap_or_default()
    }

    fn name(&self) -> &'static str {
        match self.tables.dialect {
            Dialect::Sqlite => "sqlite",
            Dialect::Postgres => "postgresql",
        }
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn is_shared(&self) -> bool {
        self.tables.dialect == Dialect::Postgres
    }
}
