//! Cache of the passages that conditions select in one snapshot. The searches of an episode use the same condition, and
//! often many clients do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AllowedPassages, Condition};
use crate::error::IndexError;

/// Maximum number of cached sets.
const MOST_KEPT: usize = 8;

/// Cached sets, most recently used first.
#[derive(Debug, Default)]
pub(crate) struct Selections(Mutex<Vec<(Arc<Condition>, Arc<AllowedPassages>)>>);

impl Selections {
    /// Returns the passages that a condition allows, calling `select` if they are not cached. Concurrent callers may
    /// select the same twice: no caller waits for another one, which may have a later deadline.
    pub(crate) fn get(
        &self,
        condition: &Arc<Condition>,
        select: impl FnOnce() -> Result<AllowedPassages, IndexError>,
    ) -> Result<Arc<AllowedPassages>, IndexError> {
        if let Some(known) = self.known(condition) {
            return Ok(known);
        }
        let allowed = Arc::new(select()?);
        let mut kept = self.lock();
        // A concurrent caller may have inserted the same condition meanwhile.
        kept.retain(|(other, _)| other != condition);
        kept.insert(0, (Arc::clone(condition), Arc::clone(&allowed)));
        kept.truncate(MOST_KEPT);
        Ok(allowed)
    }

    /// Returns the cached sets after a change, which `update` applies to each.
    pub(crate) fn carried(
        &self,
        mut update: impl FnMut(&Condition, &mut AllowedPassages) -> Result<(), IndexError>,
    ) -> Result<Selections, IndexError> {
        let mut kept = self.lock().clone();
        for (condition, allowed) in &mut kept {
            update(condition, Arc::make_mut(allowed))?;
        }
        Ok(Selections(Mutex::new(kept)))
    }

    fn known(&self, condition: &Arc<Condition>) -> Option<Arc<AllowedPassages>> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(other, _)| other == condition)?;
        kept[..=place].rotate_right(1);
        Some(Arc::clone(&kept[0].1))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<Condition>, Arc<AllowedPassages>)>> {
        // No code that holds the lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
