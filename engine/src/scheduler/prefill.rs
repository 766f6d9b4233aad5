//! Division of a step's prefill budget among sessions.

use waymark_models::BLOCK;

use super::PlannedRow;
use super::awaited_prefix::AwaitedPrefix;
use super::tenants::TenantSlot;

/// Number of tokens up to which a prefill counts as short.
const SHORT: usize = 256;
/// Number of steps among which one belongs to the oldest session, so younger and shorter ones cannot starve it.
/// The session gets a whole step, because a chunk costs less per token than the same tokens in several steps.
const OLDEST_EVERY: u64 = 4;
/// Share of its own step that the oldest session gets if short prefills wait too: their first tokens come only when the
/// step ends.
const OLDEST_BESIDE_SHORT: f64 = 0.6;

/// A session whose prompt, or observation, is not computed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefill {
    pub(super) session: u64,
    pub(super) tenant: TenantSlot,
    pub(super) ticket: u64,
    /// Service that the tenant has received.
    pub(super) service: u64,
    /// Charge of a token, which is lower for a higher priority.
    pub(super) charge: u64,
    /// Number of tokens still to compute.
    pub(super) pending: usize,
    /// If `true`, the prefill goes before long ones, whose chunks would delay its first token.
    pub(super) short: bool,
    /// Part of a long prefill that goes before long ones, because a short prompt waits for it. `None` if none does.
    pub(super) awaited: Option<AwaitedPrefix>,
    /// Predicted seconds per token.
    pub(super) cost: f64,
    /// Number of tokens to compute in this step.
    pub(super) tokens: usize,
}

impl Prefill {
    /// Returns the row of this step, if it has any tokens.
    pub(super) fn row(&self) -> Option<PlannedRow> {
        let Self { session, tokens, pending, .. } = *self;
        (tokens > 0).then_some(PlannedRow { session, tokens, proposed: 0, samples: tokens == pending })
    }

    /// Returns the number of first tokens that go before long prefills.
    fn urgent(&self) -> usize {
        if self.short { self.pending } else { self.awaited.map_or(0, |awaited| awaited.tokens.min(self.pending)) }
    }

    /// Returns the place of the urgent tokens among those of all prefills.
    fn urgent_rank(&self) -> (u64, u64, usize, u64) {
        match self.awaited.filter(|_| !self.short) {
            Some(awaited) => (awaited.service, awaited.charge, awaited.tokens, self.ticket),
            None => self.rank(),
        }
    }

    /// Returns the place among prefills of the same kind, short or long.
    fn rank(&self) -> (u64, u64, usize, u64) {
        (self.service, self.charge, self.pending, self.ticket)
    }
}

/// Bounds of a step's prefill.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefillBudget {
    /// Maximum number of tokens.
    pub(super) tokens: usize,
    /// Maximum predicted seconds.
    pub(super) seconds: f64,
}

/// Returns `true` if a prefill of this many tokens is short.
pub(super) fn is_short(tokens: usize) -> bool {
    tokens <= SHORT
}

/// Divides the budget of a step: first among short prefills, then among the others. In each group, the tenant with the
/// least service goes first, and of a tenant's sessions the one with the highest priority, then the shortest. Beside a
/// short prefill of more than one block, long prefills get nothing. The part of a long prefill for which a short prompt
/// waits is a short prefill in the place of that prompt.
///
/// `waited` is the number of steps since the oldest session's last own step, including this one. At [`OLDEST_EVERY`],
/// the oldest session goes before all others; next to such a short prefill, it goes one step later and gets only a part
/// of the step. At least one token is computed. Returns `true` if the step was the oldest session's.
pub(super) fn share(prefills: &mut [Prefill], mut budget: PrefillBudget, waited: u64) -> bool {
    // A prefill of a few tokens is like a decode row: it comes in nearly every step, and must not stop the long ones.
    let hurry = prefills.iter().any(|prefill| prefill.urgent() > BLOCK);
    let own = waited >= OLDEST_EVERY + u64::from(hurry);
    if own && let Some(oldest) = prefills.iter_mut().min_by_key(|prefill| prefill.ticket) {
        let part = if hurry { budget.seconds * OLDEST_BESIDE_SHORT } else { f64::INFINITY };
        // At least one token, because a part of a step can be less than the cost of one.
        budget.give(oldest, usize::MAX, part, 1);
    }
    prefills.sort_unstable_by_key(|prefill| (prefill.urgent() == 0, prefill.urgent_rank()));
    for prefill in prefills.iter_mut() {
        let urgent = prefill.urgent();
        budget.give(prefill, urgent, f64::INFINITY, 0);
    }
    // The step ends for all its rows at once, so a long chunk would delay the first token of a short prompt.
    if !hurry {
        prefills.sort_unstable_by_key(|prefill| (!prefill.short, prefill.rank()));
        for prefill in prefills.iter_mut() {
            budget.give(prefill, usize::MAX, f64::INFINITY, 0);
        }
    }
    if prefills.iter().all(|prefill| prefill.tokens == 0)
        && let Some(first) = prefills.first_mut()
    {
        budget.give(first, usize::MAX, f64::INFINITY, 1);
    }
    own
}

impl PrefillBudget {
    /// Gives a prefill as many of its first `most` tokens as fit into the budget and into `seconds`, but at least
    /// `least`.
    fn give(&mut self, prefill: &mut Prefill, most: usize, seconds: f64, least: usize) {
        let time = self.seconds.min(seconds).max(0.0);
        let affordable = if prefill.cost > 0.0 { (time / prefill.cost) as usize } else { usize::MAX };
        let wanted = prefill.pending.min(most).saturating_sub(prefill.tokens);
        let tokens = wanted.min(self.tokens).min(affordable.max(least));
        prefill.tokens += tokens;
        self.tokens -= tokens;
        self.seconds -= tokens as f64 * prefill.cost;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tenants::Tenants;
    use super::*;

    fn prefill(ticket: u64, service: u64, pending: usize, short: bool) -> Prefill {
        let tenant = Tenants::default().join(0);
        let charge = 4;
        let awaited = None;
        Prefill { session: ticket, tenant, ticket, service, charge, pending, short, awaited, cost: 0.001, tokens: 0 }
    }

    /// Returns the tokens of each session in a step that comes `waited` steps after the oldest session's last own step.
    fn shared_after(waited: u64, mut prefills: Vec<Prefill>, tokens: usize, milliseconds: f64) -> Vec<(u64, usize)> {
        // Half a token's time more, so rounding takes nothing away.
        share(&mut prefills, PrefillBudget { tokens, seconds: (milliseconds + 0.5) / 1e3 }, waited);
        prefills.sort_unstable_by_key(|prefill| prefill.ticket);
        prefills.iter().map(|prefill| (prefill.session, prefill.tokens)).collect()
    }

    /// Returns the tokens of each session in a step that is not the oldest session's.
    fn shared(prefills: Vec<Prefill>, tokens: usize, milliseconds: f64) -> Vec<(u64, usize)> {
        shared_after(1, prefills, tokens, milliseconds)
    }

    #[test]
    fn the_tenant_served_least_goes_first_and_the_oldest_session_in_every_fourth_step() {
        let prefills = vec![prefill(1, 90, 1000, false), prefill(2, 10, 1000, false), prefill(3, 50, 1000, false)];
        assert_eq!(shared(prefills.clone(), 512, 400.0), [(1, 0), (2, 400), (3, 0)]);
        assert_eq!(shared_after(4, prefills, 512, 400.0), [(1, 400), (2, 0), (3, 0)]);
    }

    #[test]
    fn long_prefills_wait_for_a_short_one_but_the_oldest() {
        let prefills = vec![prefill(1, 0, 1000, false), prefill(2, 0, 1000, false), prefill(3, 9, 100, true)];
        assert_eq!(shared(prefills.clone(), 512, 200.0), [(1, 0), (2, 0), (3, 100)]);
        assert_eq!(shared_after(4, prefills.clone(), 512, 200.0), [(1, 0), (2, 0), (3, 100)], "one step later");
        assert_eq!(shared_after(5, prefills, 512, 200.0), [(1, 120), (2, 0), (3, 80)]);
    }

    #[test]
    fn a_few_tokens_do_not_hold_up_a_long_prefill() {
        let prefills = vec![prefill(1, 0, 1000, false), prefill(2, 0, 3, true)];
        assert_eq!(shared(prefills, 512, 20.0), [(1, 17), (2, 3)]);
    }

    #[test]
    fn the_part_of_a_long_prefill_that_a_short_prompt_waits_for_goes_in_its_place() {
        let awaiting = |tokens: usize, service: u64| {
            let awaited = Some(AwaitedPrefix { tokens, service, charge: 4 });
            let long = Prefill { awaited, ..prefill(2, 90, 1000, false) };
            vec![prefill(1, 0, 1000, false), long, prefill(3, 50, 100, true)]
        };
        assert_eq!(shared(awaiting(48, 10), 512, 100.0), [(1, 0), (2, 48), (3, 52)]);
        assert_eq!(shared(awaiting(48, 60), 512, 100.0), [(1, 0), (2, 0), (3, 100)], "the place of the one that waits");
        assert_eq!(shared_after(5, awaiting(48, 10), 512, 100.0), [(1, 60), (2, 40), (3, 0)], "the oldest one's step");
        let mut alone = awaiting(16, 10);
        alone.truncate(2);
        assert_eq!(shared(alone, 512, 100.0), [(1, 84), (2, 16)], "a block does not hold up a long prefill");
    }

    #[test]
    fn among_the_sessions_of_a_tenant_the_higher_priority_goes_first() {
        let low = Prefill { charge: 16, ..prefill(2, 0, 500, false) };
        let prefills = vec![prefill(1, 0, 1000, false), low, prefill(3, 0, 900, false)];
        assert_eq!(shared(prefills, 4096, 1950.0), [(1, 1000), (2, 50), (3, 900)]);
    }

    #[test]
    fn no_more_is_computed_than_there_is_or_than_a_step_may_hold() {
        let prefills = vec![prefill(1, 0, 30, true), prefill(2, 0, 10, true)];
        assert_eq!(shared(prefills.clone(), 512, 300.0), [(1, 30), (2, 10)]);
        assert_eq!(shared(prefills, 35, f64::INFINITY), [(1, 25), (2, 10)], "the shorter one first");
    }

    #[test]
    fn a_step_without_time_to_spare_still_computes_a_token() {
        assert_eq!(shared(vec![prefill(1, 0, 300, false), prefill(2, 0, 300, false)], 512, -0.5), [(1, 1), (2, 0)]);
    }
}
