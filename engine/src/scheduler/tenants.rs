//! Accounts of the engine's tenants, by which tokens and places are shared.
//!
//! Tenants are served by start-time fair queueing (Goyal, Vin, Cheng 1996): each has a service, the sum of its
//! computed tokens divided by their weights, and the tenant with the lowest service goes first. A tenant that comes
//! back after a pause continues at the virtual time, so it neither saves up service nor pays for tokens that
//! nobody else wanted.

use std::collections::HashMap;

use crate::request::Priority;

/// Maximum number of accounts without sessions. Beyond that, all of them are forgotten: keeping them all would let a
/// server without keys, in which every request is a tenant, grow with its requests.
const MAX_IDLE: usize = 1024;

/// Position of a tenant in [`Tenants`], valid while it has sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TenantSlot(u32);

impl TenantSlot {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Account of a tenant.
#[derive(Debug, Default)]
struct Tenant {
    id: u64,
    /// Number of open sessions.
    sessions: usize,
    waiting: usize,
    /// Number of prefills in the step being planned.
    prefilling: usize,
    /// Sum of the charges of its running sessions: the weight of its places in the batch.
    load: u64,
    /// Weighted tokens computed for the tenant. At least the virtual time at the beginning of its last turn.
    service: u64,
}

/// Accounts of all tenants with open sessions, and of those that are ahead of the virtual time.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    accounts: Vec<Tenant>,
    slots: HashMap<u64, TenantSlot>,
    free: Vec<TenantSlot>,
    /// Virtual time: lowest service of all tenants that waited for a prefill when the last step was planned.
    clock: u64,
    /// Highest service of any tenant.
    highest: u64,
}

impl Tenants {
    /// Adds a session to a tenant.
    pub(super) fn join(&mut self, id: u64) -> TenantSlot {
        self.forget_idle();
        let slot = *self.slots.entry(id).or_insert_with(|| match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.accounts.push(Tenant::default());
                // Tenants exceed sessions by little more than `MAX_IDLE`, and memory keeps sessions far below 2³².
                TenantSlot((self.accounts.len() - 1) as u32)
            }
        });
        let account = &mut self.accounts[slot.index()];
        account.id = id;
        account.sessions += 1;
        slot
    }

    /// Removes a session from its tenant.
    pub(super) fn leave(&mut self, slot: TenantSlot) {
        self.accounts[slot.index()].sessions -= 1;
    }

    /// Forgets tenants without sessions. Up to [`MAX_IDLE`] tenants ahead of the virtual time stay: opening a new
    /// session must not make them first in line.
    fn forget_idle(&mut self) {
        let open = self.slots.values().filter(|slot| self.accounts[slot.index()].sessions > 0).count();
        let full = self.slots.len() - open > MAX_IDLE;
        let Self { accounts, slots, free, clock, .. } = self;
        slots.retain(|_, slot| {
            let account = &mut accounts[slot.index()];
            let keep = account.sessions > 0 || (account.service > *clock && !full);
            if !keep {
                *account = Tenant::default();
                free.push(*slot);
            }
            keep
        });
    }

    /// Begins a turn of a tenant.
    pub(super) fn activate(&mut self, slot: TenantSlot) {
        let account = &mut self.accounts[slot.index()];
        account.service = account.service.max(self.clock);
    }

    /// Charges a tenant for computed tokens.
    pub(super) fn charge(&mut self, slot: TenantSlot, tokens: usize, priority: Priority) {
        let account = &mut self.accounts[slot.index()];
        account.service += tokens as u64 * priority.charge();
        self.highest = self.highest.max(account.service);
    }

    pub(super) fn service(&self, slot: TenantSlot) -> u64 {
        self.accounts[slot.index()].service
    }

    /// Returns the weighted tokens by which a tenant is ahead of the virtual time.
    pub(super) fn lead(&self, slot: TenantSlot) -> u64 {
        self.service(slot).saturating_sub(self.clock)
    }

    pub(super) fn add_waiting(&mut self, slot: TenantSlot) {
        self.accounts[slot.index()].waiting += 1;
    }

    pub(super) fn remove_waiting(&mut self, slot: TenantSlot) {
        self.accounts[slot.index()].waiting -= 1;
    }

    pub(super) fn add_running(&mut self, slot: TenantSlot, priority: Priority) {
        self.accounts[slot.index()].load += priority.charge();
    }

    pub(super) fn remove_running(&mut self, slot: TenantSlot, priority: Priority) {
        self.accounts[slot.index()].load -= priority.charge();
    }

    /// Returns the weight of a tenant's places in the batch.
    pub(super) fn load(&self, slot: TenantSlot) -> u64 {
        self.accounts[slot.index()].load
    }

    /// Returns the tenants with waiting sessions.
    pub(super) fn waiting(&self) -> impl Iterator<Item = TenantSlot> {
        let waits = |(index, account): (usize, &Tenant)| (account.waiting > 0).then_some(TenantSlot(index as u32));
        self.accounts.iter().enumerate().filter_map(waits)
    }

    /// Returns the tenant whose places in the batch weigh most.
    pub(super) fn most_loaded(&self) -> Option<TenantSlot> {
        let most = (0..self.accounts.len()).max_by_key(|index| self.accounts[*index].load)?;
        Some(TenantSlot(most as u32))
    }

    /// Counts the prefills of the step being planned.
    pub(super) fn count_prefills(&mut self, prefilling: impl Iterator<Item = TenantSlot>) {
        self.accounts.iter_mut().for_each(|account| account.prefilling = 0);
        prefilling.for_each(|slot| self.accounts[slot.index()].prefilling += 1);
    }

    /// Returns the number of claims on the time of a step with the streams of the tenants `streaming`. Each tenant
    /// that wants prefills claims once. Of the streaming tenants, the one that wants the fewest prefills claims once
    /// for each of them.
    pub(super) fn claims(&self, streaming: impl Iterator<Item = TenantSlot>) -> usize {
        let wanted = |account: &Tenant| account.prefilling + account.waiting;
        let tenants = self.accounts.iter().filter(|account| wanted(account) > 0).count();
        let own = streaming.map(|slot| wanted(&self.accounts[slot.index()]).max(1)).min().unwrap_or(1);
        tenants + own - 1
    }

    /// Advances the virtual time to the lowest service of all tenants that want a prefill. If none does, there is no
    /// competition, and all tenants become equal.
    pub(super) fn advance(&mut self) {
        let wanting = self.accounts.iter().filter(|account| account.prefilling + account.waiting > 0);
        let lowest = wanting.map(|account| account.service).min().unwrap_or(self.highest);
        // Never back: a tenant that was ahead when it paused must not return with an advantage.
        self.clock = self.clock.max(lowest);
    }

    /// Returns the sums of open and waiting sessions and of loads.
    #[cfg(test)]
    pub(super) fn sums(&self) -> (usize, usize, u64) {
        let accounts = || self.accounts.iter();
        let sessions = accounts().map(|account| account.sessions).sum();
        (sessions, accounts().map(|account| account.waiting).sum(), accounts().map(|account| account.load).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advances the virtual time while `slot` alone wants a prefill.
    fn advance_with(tenants: &mut Tenants, slot: TenantSlot) {
        tenants.count_prefills([slot].into_iter());
        tenants.advance();
    }

    #[test]
    fn a_tenant_that_returns_continues_at_the_virtual_time() {
        let mut tenants = Tenants::default();
        let busy = tenants.join(1);
        tenants.activate(busy);
        tenants.charge(busy, 1000, Priority::Normal);
        advance_with(&mut tenants, busy);
        let late = tenants.join(2);
        tenants.activate(late);
        assert_eq!((tenants.service(late), tenants.lead(late)), (tenants.service(busy), 0));
    }

    #[test]
    fn a_tenant_owes_nothing_for_tokens_that_nobody_else_wanted() {
        let mut tenants = Tenants::default();
        let streaming = tenants.join(1);
        tenants.charge(streaming, 1_000_000, Priority::Normal);
        tenants.count_prefills([].into_iter());
        tenants.advance();
        let new = tenants.join(2);
        tenants.activate(new);
        tenants.activate(streaming);
        assert_eq!(tenants.service(new), tenants.service(streaming));
    }

    #[test]
    fn a_tenant_that_is_ahead_stays_so_when_it_opens_another_session() {
        let mut tenants = Tenants::default();
        let greedy = tenants.join(1);
        tenants.charge(greedy, 1000, Priority::Normal);
        tenants.leave(greedy);
        let other = tenants.join(2);
        advance_with(&mut tenants, other);
        let again = tenants.join(1);
        tenants.activate(again);
        assert!(tenants.service(again) > tenants.service(other));
        tenants.leave(again);
        tenants.charge(other, 2000, Priority::Normal);
        advance_with(&mut tenants, other);
        let third = tenants.join(3);
        assert_eq!(third, again, "its account was forgotten, and the slot used again");
        assert_eq!(tenants.service(third), 0);
    }

    #[test]
    fn accounts_do_not_grow_with_the_requests() {
        let mut tenants = Tenants::default();
        let stuck = tenants.join(0);
        for id in 1..5000 {
            let slot = tenants.join(id);
            tenants.charge(slot, 10, Priority::Normal);
            tenants.leave(slot);
            advance_with(&mut tenants, stuck);
        }
        assert!(tenants.accounts.len() <= MAX_IDLE + 3, "{}", tenants.accounts.len());
    }

    #[test]
    fn a_high_priority_costs_less_and_a_low_one_more() {
        let mut tenants = Tenants::default();
        let services = [Priority::High, Priority::Normal, Priority::Low].map(|priority| {
            let slot = tenants.join(priority.charge());
            tenants.charge(slot, 100, priority);
            tenants.service(slot)
        });
        assert_eq!(services.map(|service| service / services[0]), [1, 4, 16]);
    }

    #[test]
    fn other_tenants_claim_once_and_the_own_sessions_each() {
        let mut tenants = Tenants::default();
        let [quiet, busy, other] = [1, 2, 3].map(|id| tenants.join(id));
        tenants.count_prefills([busy, busy, busy].into_iter());
        tenants.add_waiting(other);
        assert_eq!(tenants.claims([quiet].into_iter()), 2);
        assert_eq!(tenants.claims([busy].into_iter()), 4);
        assert_eq!(tenants.claims([busy, quiet].into_iter()), 2);
    }
}
