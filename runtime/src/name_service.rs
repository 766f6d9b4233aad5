//! Name lookups of statically linked programs.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::ffi::{CStr, c_char, c_int};

/// Sources of the databases that this program reads, in the form of `/etc/nsswitch.conf`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const SOURCES: [(&CStr, &CStr); 3] = [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files")];

/// Confines the name lookups of a statically linked program to `/etc/hosts`, DNS, `/etc/passwd` and `/etc/group`. Does
/// nothing in other programs.
///
/// glibc loads the plugins that `/etc/nsswitch.conf` names (mDNS, systemd) into static programs as well, where they
/// crash, because the plugins bring a second C library. Must be called before the first lookup.
pub fn confine_name_lookups() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if cfg!(target_feature = "crt-static") {
        for (database, sources) in SOURCES {
            configure(database, sources);
        }
    }
}

/// Sets the sources of one database for this process. Returns `false` if glibc refuses them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn configure(database: &CStr, sources: &CStr) -> bool {
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }
    // SAFETY: both strings end with a zero byte and outlive the call, which copies what it keeps.
    unsafe { __nss_configure_lookup(database.as_ptr(), sources.as_ptr()) == 0 }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::ToSocketAddrs;

    use super::*;

    #[test]
    fn the_sources_are_accepted_and_localhost_is_found_by_them() {
        for (database, sources) in SOURCES {
            assert!(configure(database, sources), "{database:?}");
        }
        assert!(!configure(c"no-such-database", c"files"));
        assert!(("localhost", 80).to_socket_addrs().unwrap().next().is_some());
    }
}
