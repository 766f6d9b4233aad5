//! Promises of running sessions to compute blocks of a prefix.

use std::collections::HashMap;

use crate::prefix::PrefixKey;

/// Keys of the blocks that a running session is about to compute, with the number of that session. Other sessions wait
/// for such a block instead of computing it too.
#[derive(Debug, Default)]
pub(super) struct PrefixPromises {
    owners: HashMap<PrefixKey, u64>,
}

impl PrefixPromises {
    /// Promises blocks. A block that another session has promised already stays that session's promise.
    pub(super) fn promise(&mut self, session: u64, keys: &[PrefixKey]) {
        for key in keys {
            self.owners.entry(*key).or_insert(session);
        }
    }

    /// Withdraws a session's promises, because the blocks were computed or will not be. Promises of other sessions
    /// stay.
    pub(super) fn withdraw(&mut self, session: u64, keys: &[PrefixKey]) {
        for key in keys {
            if self.owners.get(key) == Some(&session) {
                self.owners.remove(key);
            }
        }
    }

    /// Returns the session that has promised a block.
    pub(super) fn owner(&self, key: &PrefixKey) -> Option<u64> {
        self.owners.get(key).copied()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_belongs_to_the_session_that_made_it_first() {
        let keys = [1, 2].map(|number| PrefixKey::root(number, None, 0));
        let mut promises = PrefixPromises::default();
        promises.promise(1, &keys[..1]);
        promises.promise(2, &keys);
        promises.withdraw(2, &keys);
        assert_eq!([promises.owner(&keys[0]), promises.owner(&keys[1])], [Some(1), None]);
        promises.withdraw(1, &keys);
        assert!(promises.is_empty());
    }
}
