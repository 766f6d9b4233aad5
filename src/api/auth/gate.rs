//! Middleware that authorizes each request before its handler runs and before its body is read.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Span;

use super::access::Access;
use super::account::{Account, Accounts, AddressAccounts, ClientAddress};
use super::caller;
use super::routes::{RouteRule, RouteRules};
use crate::api::error::{ApiError, Code};
use crate::api::observe::hold_until_sent;
use crate::keys::{Admitted, ApiKeys, KeyLimits, Scope};

/// Authorization state: keys and route rules. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct AuthGate {
    keys: ApiKeys,
    addresses: AddressAccounts,
    rules: Arc<RouteRules>,
    /// If `true`, no two keys share cached prefixes or cached vectors of search queries.
    private_cache: bool,
}

impl AuthGate {
    /// Creates the gate in front of the routes in `rules`, opened by `keys`. Each address has the limits `address`.
    pub(crate) fn new(keys: ApiKeys, address: KeyLimits, rules: RouteRules, private_cache: bool) -> Self {
        Self { keys, addresses: AddressAccounts::new(address), rules: Arc::new(rules), private_cache }
    }
}

/// Access that a request asks for.
enum RequestedAccess {
    /// A route that needs no key.
    Public,
    /// A route that needs a key with this scope.
    Scope(Scope),
    /// A path or method that does not exist. Only callers with a known key get to see the 404 or 405.
    Unknown,
}

/// Authorizes a request or refuses it with an error. An admitted request counts against its key's concurrency until the
/// response is sent.
pub(crate) async fn authorize(State(gate): State<AuthGate>, mut request: Request, next: Next) -> Response {
    // Looked up by the pattern of the matched route, so no spelling of a path evades its rule.
    let rule = request.extensions().get::<MatchedPath>().map(|path| gate.rules.of(path.as_str(), request.method()));
    let requested = match &rule {
        Some(RouteRule::Declared(Access::Open)) => RequestedAccess::Public,
        Some(RouteRule::Declared(Access::Needs(scope))) => RequestedAccess::Scope(*scope),
        // Callers without a key must not learn which paths and methods exist.
        Some(RouteRule::Methods(_)) | None => RequestedAccess::Unknown,
        Some(RouteRule::None) => {
            return ApiError::new(Code::InsufficientScope, "this route is closed").into_response();
        }
    };
    let admitted = match gate.check(&requested, &mut request) {
        Ok(admitted) => admitted,
        Err(error) => return error.into_response(),
    };
    if let Some(RouteRule::Methods(allowed)) = rule {
        return no_method(&request, &allowed);
    }
    let response = next.run(request).await;
    if admitted.is_empty() { response } else { hold_until_sent(response, Span::none(), admitted) }
}

impl AuthGate {
    /// Checks that a request may have the access it asks for. Returns its slots in the limits that it counts towards.
    fn check(&self, requested: &RequestedAccess, request: &mut Request) -> Result<Vec<Admitted>, ApiError> {
        if matches!(requested, RequestedAccess::Public) {
            return Ok(Vec::new());
        }
        let address = request.extensions().get::<ClientAddress>().copied();
        let mut accounts: Vec<Account> = address.and_then(|address| self.addresses.of(address)).into_iter().collect();
        // Counted before the key is looked at, so guessing keys is limited as well.
        let mut slots = accounts.iter().map(Account::admit).collect::<Result<Vec<_>, _>>()?;
        if self.keys.required() {
            let account = self.check_key(requested, request)?;
            slots.push(account.admit()?);
            accounts.push(account);
        }
        request.extensions_mut().insert(Accounts(accounts.into()));
        Ok(slots)
    }

    /// Checks that the key of a request gives the access it asks for, and returns its account.
    fn check_key(&self, requested: &RequestedAccess, request: &mut Request) -> Result<Account, ApiError> {
        let sent = bearer(request.headers())
            .ok_or_else(|| unknown("this server requires an API key: send it as `Authorization: Bearer …`"))?;
        let known = self.keys.find(sent).ok_or_else(|| unknown("unknown API key"))?;
        tracing::Span::current().record("key", known.entry.id.as_str());
        if let RequestedAccess::Scope(scope) = requested
            && !known.entry.scopes.contains(scope)
        {
            let message = format!("this key lacks the scope `{scope}`");
            return Err(ApiError::new(Code::InsufficientScope, message));
        }
        let account = Account::of_key(&known);
        // 0 stands for the shared cache; the salt of a digest is never 0.
        let salt = if self.private_cache || known.entry.private_cache { known.entry.digest.salt() } else { 0 };
        let shares = self.keys.several();
        request.extensions_mut().insert(caller::CallerKey { known, salt, shares });
        Ok(account)
    }
}

/// Returns the bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let sent = headers.get(header::AUTHORIZATION)?.as_bytes();
    let space = sent.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = sent.split_at(space);
    let key = scheme.eq_ignore_ascii_case(b"bearer").then(|| rest.trim_ascii())?;
    (!key.is_empty()).then_some(key)
}

fn unknown(message: &str) -> ApiError {
    ApiError::new(Code::InvalidApiKey, message)
}

/// Builds the 405 response for a method that the path does not support.
fn no_method(request: &Request, allowed: &str) -> Response {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    let mut response = ApiError::new(Code::MethodNotAllowed, message).into_response();
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::Router;
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower_service::Service;

    use super::*;
    use crate::keys::{KeyEntry, Secret};

    #[tokio::test]
    async fn a_route_that_nobody_declared_is_closed_to_everybody() {
        let secret = Secret::generate();
        let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(&secret)]).unwrap();
        for keys in [keys, ApiKeys::default()] {
            let gate = AuthGate::new(keys, KeyLimits::default(), RouteRules::default(), false);
            let mut router: Router =
                Router::new().route("/raw", get(|| async { "in" })).layer(from_fn_with_state(gate, authorize));
            let request = axum::http::Request::builder()
                .uri("/raw")
                .header("authorization", format!("Bearer {}", secret.reveal()))
                .body(Body::empty())
                .unwrap();
            assert_eq!(router.call(request).await.unwrap().status(), StatusCode::FORBIDDEN);
        }
    }

    #[test]
    fn a_key_is_sent_as_a_bearer() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(of("Bearer abc"), Some(b"abc".to_vec()));
        assert_eq!(of("bearer   abc "), Some(b"abc".to_vec()));
        assert_eq!(of("Basic abc"), None);
        assert_eq!(of("Bearerabc"), None);
        assert_eq!(of("Bearer "), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
