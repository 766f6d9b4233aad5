//! The place that a waiting session lends to the session that computes its prefix.
//!
//! A session waits for blocks that a running one has promised, so that no block is computed twice. If a short prompt
//! waits for a long one, these blocks are computed when it would have been the short prompt's turn.

use waymark_models::BLOCK;

use super::prefill::{self, Prefill};
use super::{BURST, Scheduler};

/// First tokens of a prefill, for whose blocks a short prompt waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct AwaitedPrefix {
    /// Number of the tokens.
    pub(super) tokens: usize,
    /// Service that the tenant of the waiting session has received.
    pub(super) service: u64,
    /// Charge of a token of the waiting session.
    pub(super) charge: u64,
}

impl Scheduler {
    /// Lends the place of the waiting session `id` to the prefill that computes its next block, if its prompt is short.
    /// The first waiting session counts: the others have their turn after it.
    pub(super) fn lend_place(&mut self, id: u64, prefills: &mut [Prefill]) {
        let Self { sessions, queues, pool, .. } = self;
        let Some(session) = sessions.get_mut(&id) else { return };
        let tenant = session.entry.tenant();
        let charge = session.entry.priority().charge();
        let pending = session.sequence.pending();
        let (known, keys) = session.sequence.shareable(pool);
        let known = known.len();
        if !prefill::is_short(pending - known * BLOCK) || queues.tenants.lead(tenant) > BURST {
            return;
        }
        let Some(owner) = keys.get(known).and_then(|key| queues.promised_by(key)) else { return };
        let promised = keys[known..].iter().take_while(|key| queues.promised_by(key) == Some(owner)).count();
        let computed = sessions.get(&owner).map_or(0, |owner| owner.sequence.computed());
        let tokens = ((known + promised) * BLOCK).saturating_sub(computed);
        let service = queues.tenants.service(tenant);
        if let Some(prefill) = prefills.iter_mut().find(|prefill| prefill.session == owner) {
            prefill.awaited = prefill.awaited.or(Some(AwaitedPrefix { tokens, service, charge }));
        }
    }
}
