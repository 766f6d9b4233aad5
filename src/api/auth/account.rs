//! Limits that a request counts towards: those of its key, and those of its client's address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use crate::api::error::{ApiError, Code};
use crate::keys::{Admitted, KeyLimits, KnownKey, Meter, Refused};

/// Maximum number of addresses with a count of their own. Further ones share one count until others are idle.
const MAX_ADDRESSES: usize = 1 << 16;

/// Address of a client, by which it is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Limits and their current usage.
#[derive(Debug, Clone)]
pub(super) struct Account {
    meter: Arc<Meter>,
    limits: KeyLimits,
    /// Owner of the account, for error messages.
    whose: &'static str,
}

/// Accounts that a request counts towards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accounts(pub(super) Arc<[Account]>);

/// Usage of each address; clones share it.
#[derive(Debug, Clone)]
pub(super) struct AddressAccounts {
    limits: KeyLimits,
    meters: Arc<Mutex<HashMap<IpAddr, Arc<Meter>>>>,
}

impl Account {
    /// Returns the account of a key.
    pub(super) fn of_key(known: &KnownKey) -> Self {
        Self { meter: Arc::clone(&known.meter), limits: known.entry.limits, whose: "this key" }
    }

    /// Admits a request, which counts as running until the result is dropped.
    ///
    /// # Errors
    /// 429 if a limit is reached.
    pub(super) fn admit(&self) -> Result<Admitted, ApiError> {
        self.meter.admit(&self.limits, Instant::now().into_std()).map_err(|refused| self.refusal(refused))
    }

    fn refusal(&self, refused: Refused) -> ApiError {
        let KeyLimits { requests_per_minute, tokens_per_minute, concurrent } = self.limits;
        let whose = self.whose;
        let (message, wait) = match refused {
            Refused::Rate(wait) => {
                (format!("{whose} may ask {} times a minute", requests_per_minute.unwrap_or_default()), wait)
            }
            Refused::Tokens(wait) => {
                (format!("{whose} may use {} tokens a minute", tokens_per_minute.unwrap_or_default()), wait)
            }
            Refused::Concurrency => {
                let message = format!("{whose} may ask for {} things at once", concurrent.unwrap_or_default());
                return ApiError::new(Code::ConcurrencyLimited, message);
            }
        };
        ApiError { retry_after: Some(wait), ..ApiError::new(Code::RateLimited, message) }
    }
}

impl Accounts {
    /// Counts `more` requests beyond the one that was admitted, such as the further prompts of a list.
    ///
    /// # Errors
    /// 429 if an account may not make that many.
    pub(crate) fn count_requests(&self, more: usize) -> Result<(), ApiError> {
        if more == 0 {
            return Ok(());
        }
        let now = Instant::now().into_std();
        for (place, account) in self.0.iter().enumerate() {
            if let Err(refused) = account.meter.count_requests(&account.limits, more, now) {
                // A refused request uses nothing up in any account.
                for counted in &self.0[..place] {
                    counted.meter.uncount_requests(&counted.limits, more, now);
                }
                return Err(account.refusal(refused));
            }
        }
        Ok(())
    }

    /// Counts `tokens` tokens.
    pub(crate) fn count_tokens(&self, tokens: usize) {
        let now = Instant::now().into_std();
        self.0.iter().for_each(|account| account.meter.count_tokens(&account.limits, tokens, now));
    }

    /// Takes back `tokens` tokens that were counted and not computed.
    pub(crate) fn uncount_tokens(&self, tokens: usize) {
        let now = Instant::now().into_std();
        self.0.iter().for_each(|account| account.meter.uncount_tokens(&account.limits, tokens, now));
    }
}

impl AddressAccounts {
    /// Creates accounts with the same `limits` for each address.
    pub(super) fn new(limits: KeyLimits) -> Self {
        Self { limits, meters: Arc::default() }
    }

    /// Returns the account of an address. `None` if addresses have no limits.
    pub(super) fn of(&self, ClientAddress(address): ClientAddress) -> Option<Account> {
        if self.limits == KeyLimits::default() {
            return None;
        }
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        let mut meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        // Idle addresses are dropped only when the table is full: a request usually looks at one entry.
        if meters.len() >= MAX_ADDRESSES && !meters.contains_key(&address) {
            let now = Instant::now().into_std();
            meters.retain(|_, meter| !meter.is_idle(&self.limits, now));
        }
        let full = meters.len() >= MAX_ADDRESSES && !meters.contains_key(&address);
        let place = if full { IpAddr::from([0; 4]) } else { address };
        let meter = Arc::clone(meters.entry(place).or_default());
        Some(Account { meter, limits: self.limits, whose: "this address" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_refused_list_of_requests_uses_nothing_up() {
        let limits = |most| KeyLimits { requests_per_minute: Some(most), ..KeyLimits::default() };
        let account = |most, whose| Account { meter: Arc::default(), limits: limits(most), whose };
        let accounts = Accounts([account(10, "this address"), account(3, "this key")].into());
        accounts.0.iter().for_each(|account| drop(account.admit().unwrap()));
        drop(accounts.0[1].admit().unwrap());
        assert_eq!(accounts.count_requests(5).unwrap_err().message, "this key may ask 3 times a minute");
        let address = Accounts([accounts.0[0].clone()].into());
        address.count_requests(9).unwrap();
    }

    #[test]
    fn each_address_has_its_own_limits() {
        let accounts = AddressAccounts::new(KeyLimits { requests_per_minute: Some(1), ..KeyLimits::default() });
        let of = |last: u8| accounts.of(ClientAddress(IpAddr::from([192, 0, 2, last]))).unwrap();
        of(1).admit().unwrap();
        let refused = of(1).admit().unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (Code::RateLimited, "this address may ask 1 times a minute")
        );
        of(2).admit().unwrap();
        let unlimited = AddressAccounts::new(KeyLimits::default());
        assert!(unlimited.of(ClientAddress(IpAddr::from([192, 0, 2, 1]))).is_none());
    }
}
