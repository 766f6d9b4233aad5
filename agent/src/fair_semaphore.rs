//! Semaphore whose permits tenants take in turn.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Permits for which tenants wait in turn: a free permit goes to the next tenant, and to the oldest waiter of that
/// tenant.
///
/// The number of waiters is bounded. If no more may wait, a tenant takes the place of the youngest waiter of the tenant
/// with the most, unless it would have as many itself. One tenant alone can therefore take all the places.
#[derive(Debug)]
pub struct FairSemaphore(Mutex<SemaphoreState>);

#[derive(Debug)]
struct SemaphoreState {
    /// Number of free permits; 0 while anyone waits.
    free: usize,
    /// Tenants that wait; the next permit goes to the first.
    turns: VecDeque<TenantQueue>,
    /// Maximum number of waiters.
    most: usize,
}

/// Waiters of one tenant by age; at least one.
#[derive(Debug)]
struct TenantQueue {
    tenant: u64,
    waiters: VecDeque<oneshot::Sender<FairPermit>>,
}

/// Permit that goes to the next waiter when dropped.
#[derive(Debug)]
pub struct FairPermit(Option<Arc<FairSemaphore>>);

impl FairSemaphore {
    /// Creates `permits` permits, for which up to `most` waiters may wait.
    pub fn new(permits: usize, most: usize) -> Arc<FairSemaphore> {
        let state = SemaphoreState { free: permits, turns: VecDeque::new(), most };
        Arc::new(FairSemaphore(Mutex::new(state)))
    }

    /// Takes a place in the queue of `tenant`. The receiver gets a permit, or an error if another tenant took the
    /// place. `None` if no more may wait.
    pub fn wait(self: &Arc<Self>, tenant: u64) -> Option<oneshot::Receiver<FairPermit>> {
        let (waiter, permit) = oneshot::channel();
        let mut state = self.lock();
        if state.free == 0 {
            return state.push(tenant, waiter).then_some(permit);
        }
        state.free -= 1;
        drop(state);
        // The receiver exists, so sending cannot fail.
        let _ = waiter.send(self.permit());
        Some(permit)
    }

    /// Returns `true` if a tenant other than `tenant` waits.
    pub fn others_wait(&self, tenant: u64) -> bool {
        let mut state = self.lock();
        state.remove_closed();
        state.turns.iter().any(|queue| queue.tenant != tenant)
    }

    /// Returns the number of free permits.
    pub(super) fn free(&self) -> usize {
        self.lock().free
    }

    /// Adds a permit.
    pub(super) fn add_permit(self: &Arc<Self>) {
        let mut permit = self.permit();
        while let Some(waiter) = self.next_or_free() {
            match waiter.send(permit) {
                Ok(()) => return,
                // The waiter gave up meanwhile.
                Err(unused) => permit = unused,
            }
        }
        permit.forget();
    }

    fn permit(self: &Arc<Self>) -> FairPermit {
        FairPermit(Some(Arc::clone(self)))
    }

    /// Removes the next waiter. Without one, counts a free permit.
    fn next_or_free(&self) -> Option<oneshot::Sender<FairPermit>> {
        let mut state = self.lock();
        let next = state.pop();
        if next.is_none() {
            state.free += 1;
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, SemaphoreState> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SemaphoreState {
    /// Adds a waiter. Returns `false` if no more may wait.
    fn push(&mut self, tenant: u64, waiter: oneshot::Sender<FairPermit>) -> bool {
        self.remove_closed();
        let waiting: usize = self.turns.iter().map(|queue| queue.waiters.len()).sum();
        if waiting >= self.most && !self.make_room(tenant) {
            return false;
        }
        match self.turns.iter_mut().find(|queue| queue.tenant == tenant) {
            Some(queue) => queue.waiters.push_back(waiter),
            None => self.turns.push_back(TenantQueue { tenant, waiters: VecDeque::from([waiter]) }),
        }
        true
    }

    /// Removes the youngest waiter of the tenant with the most. Returns `false` if `tenant` would then have as many.
    fn make_room(&mut self, tenant: u64) -> bool {
        let own = self.turns.iter().find(|queue| queue.tenant == tenant).map_or(0, |queue| queue.waiters.len());
        let Some(longest) = self.turns.iter_mut().max_by_key(|queue| queue.waiters.len()) else { return false };
        // Otherwise two tenants would take the place from each other forever.
        if longest.waiters.len() <= own + 1 {
            return false;
        }
        longest.waiters.pop_back();
        true
    }

    /// Removes the next waiter, after which it is the turn of the next tenant.
    fn pop(&mut self) -> Option<oneshot::Sender<FairPermit>> {
        // A tenant whose waiter gave up does not lose its turn.
        self.remove_closed();
        let mut queue = self.turns.pop_front()?;
        let waiter = queue.waiters.pop_front();
        if !queue.waiters.is_empty() {
            self.turns.push_back(queue);
        }
        waiter
    }

    fn remove_closed(&mut self) {
        for queue in &mut self.turns {
            queue.waiters.retain(|waiter| !waiter.is_closed());
        }
        self.turns.retain(|queue| !queue.waiters.is_empty());
    }
}

impl FairPermit {
    /// Removes the permit from its semaphore.
    pub(super) fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        if let Some(semaphore) = self.0.take() {
            semaphore.add_permit();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn waiters<const N: usize>(
        semaphore: &Arc<FairSemaphore>,
        tenants: [u64; N],
    ) -> [oneshot::Receiver<FairPermit>; N] {
        tenants.map(|tenant| semaphore.wait(tenant).unwrap())
    }

    #[test]
    fn tenants_take_turns() {
        let semaphore = FairSemaphore::new(1, 8);
        let [mut running, mut first, mut second, mut third, mut other] = waiters(&semaphore, [1, 1, 1, 1, 2]);
        let mut permit = running.try_recv().unwrap();
        assert!(semaphore.others_wait(1) && semaphore.others_wait(2) && semaphore.others_wait(3));
        for next in [&mut first, &mut other, &mut second, &mut third] {
            assert!(matches!(next.try_recv(), Err(TryRecvError::Empty)));
            drop(permit);
            permit = next.try_recv().unwrap();
        }
        assert_eq!((semaphore.free(), semaphore.others_wait(3)), (0, false));
        drop(permit);
        assert_eq!(semaphore.free(), 1);
    }

    #[test]
    fn a_waiter_that_gives_up_costs_its_tenant_no_turn() {
        let semaphore = FairSemaphore::new(1, 8);
        let [running, gone, mut own, mut other] = waiters(&semaphore, [1, 1, 1, 2]);
        drop(gone);
        drop(running);
        assert!(semaphore.others_wait(1) && !semaphore.others_wait(2));
        let permit = own.try_recv().unwrap();
        drop(permit);
        // The permit that nobody took comes back.
        drop(other.try_recv().unwrap());
        assert_eq!(semaphore.free(), 1);
    }

    #[test]
    fn a_tenant_with_fewer_waiters_takes_a_place_of_the_one_with_the_most() {
        let semaphore = FairSemaphore::new(1, 3);
        let [_running, mut first, mut second, mut third] = waiters(&semaphore, [1, 1, 1, 1]);
        assert!(semaphore.wait(1).is_none(), "its own places are taken");
        let mut other = semaphore.wait(2).unwrap();
        assert!(matches!(third.try_recv(), Err(TryRecvError::Closed)), "the youngest gives way");
        assert!([1, 2].iter().all(|tenant| semaphore.wait(*tenant).is_none()), "both would have as many");
        for kept in [&mut first, &mut second, &mut other] {
            assert!(matches!(kept.try_recv(), Err(TryRecvError::Empty)));
        }
        // Places of waiters that gave up are free.
        drop((first, second));
        let _again = waiters(&semaphore, [1, 1]);
    }

    #[test]
    fn a_forgotten_permit_does_not_come_back() {
        let semaphore = FairSemaphore::new(1, 1);
        let [mut running, mut waiting] = waiters(&semaphore, [1, 2]);
        running.try_recv().unwrap().forget();
        assert!(matches!(waiting.try_recv(), Err(TryRecvError::Empty)));
        semaphore.add_permit();
        drop(waiting.try_recv().unwrap());
        assert_eq!(semaphore.free(), 1);
    }
}
