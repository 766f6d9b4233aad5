//! Removal of the oldest records beyond the limits of age, number and size. As in memory, the tenant that takes the
//! most room gives way, so no tenant can push out the records of another one that takes less.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Tables, delete};
use crate::keys::KeyOwner;
use crate::store::StoreError;
use crate::store::StoreSize;
use crate::store::record::{Owner, RecordKey, RecordKind};

/// Interval between two passes.
const INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of records that one statement of a pass looks at.
const BATCH: i64 = 256;

/// Limits of the records of each kind. They are enforced twice a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Maximum number of records.
    pub count: usize,
    /// Maximum total size of the compressed records, in bytes.
    pub bytes: usize,
    /// Maximum age of a record. `None` keeps records of any age.
    pub age: Option<Duration>,
}

impl Default for StateLimits {
    fn default() -> Self {
        Self { count: 100_000, bytes: 4 << 30, age: Some(Duration::from_secs(30 * 24 * 3600)) }
    }
}

/// Room that a tenant takes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TenantShare {
    owner: Owner,
    size: StoreSize,
    /// Position of the oldest record.
    oldest: i64,
}

/// Enforces `limits` for as long as the task runs. A pass that fails is repeated.
pub(super) async fn keep_within(tables: Tables, limits: StateLimits) {
    loop {
        // Sleeps first, because opening the store has just made a pass.
        tokio::time::sleep(INTERVAL).await;
        if let Err(error) = tables.trim(limits).await {
            tracing::warn!(%error, "cannot remove old records of the state");
        }
    }
}

impl Tables {
    /// Removes what exceeds `limits`, and measures what is left.
    pub(super) async fn trim(&self, limits: StateLimits) -> Result<(), StoreError> {
        for kind in RecordKind::BOUNDED {
            if let Some(age) = limits.age {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let oldest = now.saturating_sub(age).as_micros();
                self.remove_before(kind, i64::try_from(oldest).unwrap_or(i64::MAX)).await?;
            }
            let mut shares = self.shares(kind).await?;
            while let Some(largest) = over(&shares, limits) {
                let removed = self.remove_oldest(kind, &shares, largest, limits).await?;
                // Nothing to remove: another server was faster.
                if removed == 0 {
                    break;
                }
                shares = self.shares(kind).await?;
            }
            let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
            sizes.insert(kind, total(&shares));
        }
        Ok(())
    }

    /// Returns the room that each tenant takes.
    async fn shares(&self, kind: RecordKind) -> Result<Vec<TenantShare>, StoreError> {
        let statement = "SELECT tenant, COUNT(*) AS records, CAST(SUM(bytes) AS BIGINT) AS bytes, MIN(position) AS oldest \
                         FROM record WHERE kind = $1 GROUP BY tenant";
        let rows = sqlx::query(statement).bind(kind.name()).fetch_all(&self.pool).await?;
        let share = |row: &AnyRow| -> Result<TenantShare, StoreError> {
            let count: i64 = row.try_get("records")?;
            let bytes: i64 = row.try_get("bytes")?;
            let tenant: String = row.try_get("tenant")?;
            let size =
                StoreSize { count: usize::try_from(count).unwrap_or(0), bytes: usize::try_from(bytes).unwrap_or(0) };
            Ok(TenantShare { owner: KeyOwner::parse(&tenant), size, oldest: row.try_get("oldest")? })
        };
        rows.iter().map(share).collect()
    }

    /// Removes the oldest records of the tenant `shares[largest]` until the limits hold or the next tenant is the
    /// largest.
    async fn remove_oldest(
        &self,
        kind: RecordKind,
        shares: &[TenantShare],
        largest: usize,
        limits: StateLimits,
    ) -> Result<usize, StoreError> {
        let owner = shares[largest].owner;
        let statement = "SELECT id, bytes FROM record WHERE kind = $1 AND tenant = $2 AND parent = '' \
                         ORDER BY position, id LIMIT $3";
        let query = sqlx::query(statement).bind(kind.name()).bind(super::tenant(owner)).bind(BATCH);
        // Taken before the records are chosen: an append makes a conversation young again.
        let _turn = self.turn().await;
        let rows = query.fetch_all(&self.pool).await?;
        // Kept up to date while records go, because another tenant may become the largest.
        let mut left = shares.to_vec();
        let mut removed = 0;
        let mut transaction = self.pool.begin().await?;
        for row in rows {
            if over(&left, limits).is_none_or(|now| left[now].owner != owner) {
                break;
            }
            let bytes: i64 = row.try_get("bytes")?;
            let key = RecordKey::new(kind, owner, row.try_get::<String, _>("id")?);
            removed += usize::from(delete(&mut transaction, &key).await?);
            let share = &mut left[largest].size;
            share.count = share.count.saturating_sub(1);
            share.bytes = share.bytes.saturating_sub(usize::try_from(bytes).unwrap_or(0));
        }
        transaction.commit().await?;
        Ok(removed)
    }

    /// Removes the records whose position is before `oldest`.
    async fn remove_before(&self, kind: RecordKind, oldest: i64) -> Result<(), StoreError> {
        loop {
            // In the same order as `remove_oldest`: servers that lock the same rows in two orders may deadlock.
            let statement = "SELECT tenant, id FROM record WHERE kind = $1 AND parent = '' AND position < $2 \
                             ORDER BY tenant, position, id LIMIT $3";
            // Taken before the records are chosen: an append makes a conversation young again.
            let _turn = self.turn().await;
            let rows = sqlx::query(statement).bind(kind.name()).bind(oldest).bind(BATCH).fetch_all(&self.pool).await?;
            let mut transaction = self.pool.begin().await?;
            let mut removed = 0;
            for row in &rows {
                let owner = KeyOwner::parse(&row.try_get::<String, _>("tenant")?);
                let key = RecordKey::new(kind, owner, row.try_get::<String, _>("id")?);
                removed += usize::from(delete(&mut transaction, &key).await?);
            }
            transaction.commit().await?;
            // Nothing to remove: there are no such records, or another server was faster.
            if removed == 0 {
                return Ok(());
            }
        }
    }
}

fn total(shares: &[TenantShare]) -> StoreSize {
    StoreSize {
        count: shares.iter().map(|share| share.size.count).sum(),
        bytes: shares.iter().map(|share| share.size.bytes).sum(),
    }
}

/// Returns the tenant that must give way, if the limits are exceeded: the one with the most records, or the most bytes;
/// of two equal ones, the one with the older record.
fn over(shares: &[TenantShare], limits: StateLimits) -> Option<usize> {
    let total = total(shares);
    let crowded = total.count > limits.count;
    if !crowded && total.bytes <= limits.bytes {
        return None;
    }
    let room = |share: &TenantShare| if crowded { share.size.count } else { share.size.bytes };
    let largest = shares.iter().enumerate().max_by_key(|(_, share)| (room(share), std::cmp::Reverse(share.oldest)));
    largest.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn share(count: usize, bytes: usize, oldest: i64) -> TenantShare {
        TenantShare { owner: None, size: StoreSize { count, bytes }, oldest }
    }

    #[test]
    fn the_largest_tenant_gives_way() {
        let limits = StateLimits { count: 10, bytes: 100, age: None };
        assert_eq!(over(&[share(4, 50, 1), share(6, 50, 2)], limits), None);
        assert_eq!(over(&[share(4, 90, 1), share(7, 5, 2)], limits), Some(1));
        assert_eq!(over(&[share(4, 90, 1), share(6, 11, 2)], limits), Some(0));
        assert_eq!(over(&[share(6, 1, 2), share(6, 1, 1)], limits), Some(1));
    }
}
