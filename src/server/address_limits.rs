//! Limit of connections from one address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Bits of an IPv6 address that name a network. A single client usually has a whole network to itself.
const NETWORK: u128 = !0 << 64;

/// Number of open connections per client address, up to a limit.
#[derive(Debug)]
pub(super) struct AddressLimits {
    most: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Open connection of an address; it counts until it is dropped.
#[derive(Debug)]
pub(super) struct AddressSlot {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl AddressLimits {
    /// Creates a limit of `most` connections for each address.
    pub(super) fn new(most: usize) -> Self {
        Self { most, open: Arc::default() }
    }

    /// Counts a connection from `address`. `None` if the address has its maximum already.
    pub(super) fn admit(&self, address: IpAddr) -> Option<AddressSlot> {
        let address = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(AddressSlot { address, open: Arc::clone(&self.open) })
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = open.entry(self.address) {
            *count.get_mut() -= 1;
            // Addresses without a connection are forgotten, so the map is bounded by the connections.
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Returns the address by which a client is counted: its IPv4 address, also if written as an IPv6 one, or its IPv6
/// network.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_address_has_its_own_limit_and_gets_slots_back() {
        let limits = AddressLimits::new(2);
        let first = limits.admit(ip("192.0.2.1")).unwrap();
        let second = limits.admit(ip("::ffff:192.0.2.1")).unwrap();
        assert!(limits.admit(ip("192.0.2.1")).is_none());
        let other = limits.admit(ip("192.0.2.2")).unwrap();
        drop(first);
        let third = limits.admit(ip("192.0.2.1")).unwrap();
        drop((second, third, other));
        assert!(limits.open.lock().unwrap().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let limits = AddressLimits::new(1);
        let _first = limits.admit(ip("2001:db8::1")).unwrap();
        assert!(limits.admit(ip("2001:db8::ffff:2")).is_none());
        assert!(limits.admit(ip("2001:db8:0:1::1")).is_some());
    }
}
