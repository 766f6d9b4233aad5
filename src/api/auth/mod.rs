//! Authorization of requests by API keys ([`crate::keys`]): the gate in front of every route.
//!
//! | file | content |
//! |---|---|
//! | `access` | access that a route requires |
//! | `routes` | routes, each declared together with its required access |
//! | `gate` | middleware that authorizes a request before its handler |
//! | `account` | limits of keys and addresses that a request counts towards |
//! | `caller` | extractor for the sender of a request |
//!
//! A route that was not declared is closed to everyone, even if the server has no keys.

mod access;
mod account;
mod caller;
mod gate;
mod routes;

pub(crate) use account::{Accounts, ClientAddress};
pub(crate) use caller::Caller;
pub(crate) use gate::{AuthGate, authorize};
pub(crate) use routes::ProtectedRoutes;
