//! Access of tests to a database.
#![allow(clippy::unwrap_used)]

use super::{SqlStore, StateLimits};

/// Runs a statement on one connection.
pub(in crate::store) async fn execute(store: &SqlStore, statement: &'static str) {
    sqlx::query(statement).execute(&store.tables.pool).await.unwrap();
}

/// Runs a statement on as many connections as the store may have.
pub(in crate::store) async fn execute_everywhere(store: &SqlStore, statement: &'static str) {
    let mut connections = Vec::new();
    for _ in 0..store.tables.pool.options().get_max_connections() {
        let mut connection = store.tables.pool.acquire().await.unwrap();
        sqlx::query(statement).execute(&mut *connection).await.unwrap();
        connections.push(connection);
    }
}

/// Removes what exceeds `limits`.
pub(in crate::store) async fn trim(store: &SqlStore, limits: StateLimits) {
    store.tables.trim(limits).await.unwrap();
}
