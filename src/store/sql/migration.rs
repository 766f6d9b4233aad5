//! Versions of the database's schema.

use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::Dialect;
use crate::store::StoreError;

/// Statements that lead from each version to the next. Entries are never changed once they were released.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql")];

/// Brings the schema to the latest version.
///
/// # Errors
/// If a later program has written the database, or a statement fails; the database is then as it was.
pub(super) async fn migrate(pool: &AnyPool, dialect: Dialect) -> Result<(), StoreError> {
    let mut transaction = pool.begin().await?;
    if dialect == Dialect::Postgres {
        // Several servers may start at once. No other lock in the database has this number.
        sqlx::query("SELECT pg_advisory_xact_lock(7308897178)").execute(&mut *transaction).await?;
    }
    sqlx::query("CREATE TABLE IF NOT EXISTS migration (version BIGINT PRIMARY KEY)").execute(&mut *transaction).await?;
    let version = sqlx::query("SELECT COALESCE(MAX(version), 0) AS version FROM migration");
    let found: i64 = version.fetch_one(&mut *transaction).await?.try_get("version")?;
    let known = MIGRATIONS.len() as i64;
    if found > known {
        return Err(StoreError::Version { found, known });
    }
    for (version, statements) in (1i64..).zip(MIGRATIONS) {
        if version <= found {
            continue;
        }
        // A prepared statement of PostgreSQL holds one command.
        for statement in statements.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            let statement = match dialect {
                Dialect::Sqlite => statement.to_owned(),
                // The one type whose name differs.
                Dialect::Postgres => statement.replace("BLOB", "BYTEA"),
            };
            // The text is our own.
            sqlx::query(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
        }
        sqlx::query("INSERT INTO migration (version) VALUES ($1)").bind(version).execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}
