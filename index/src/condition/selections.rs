//! What conditions came to in one snapshot: the searches of an episode ask by the same one, and so may many clients.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AllowedPassages, Condition};
use crate::error::IndexError;

/// Sets that are kept at a time, each of a bit for each passage.
const MOST_KEPT: usize = 8;

/// The sets that were last used, the last one first.
#[derive(Debug, Default)]
pub(crate) struct Selections(Mutex<Vec<(Arc<Condition>, Arc<AllowedPassages>)>>);

impl Selections {
    /// The passages that a condition allows, by `select` where they are not known. Who asks for the same at once may
    /// select twice: nobody waits for another one's deadline.
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
        kept.retain(|(other, _)| other != condition);
        kept.insert(0, (Arc::clone(condition), Arc::clone(&allowed)));
        kept.truncate(MOST_KEPT);
        Ok(allowed)
    }

    fn known(&self, condition: &Arc<Condition>) -> Option<Arc<AllowedPassages>> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(other, _)| other == condition)?;
        kept[..=place].rotate_right(1);
        Some(Arc::clone(&kept[0].1))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<Condition>, Arc<AllowedPassages>)>> {
        // Nothing in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
