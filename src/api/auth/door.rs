//! What happens to a request before its handler, and before its body is read.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tracing::Span;

use super::caller;
use super::keys::{Keys, Known};
use super::meter::{Admitted, Refused};
use super::routes::{Rule, Rules};
use super::scope::{Access, Scope};
use crate::api::error::{ApiError, Code};
use crate::api::observe::hold_until_sent;

/// Who is let in where; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    keys: Keys,
    rules: Arc<Rules>,
    /// Whether every key's cached prefixes are its own.
    private_cache: bool,
}

impl Door {
    /// A door to the routes of `rules`, for `keys`.
    pub(crate) fn new(keys: Keys, rules: Rules, private_cache: bool) -> Self {
        Self { keys, rules: Arc::new(rules), private_cache }
    }
}

/// What a request wants.
enum Wanted {
    /// Something that anybody may have.
    Anything,
    /// Something that a key must have this scope for.
    Scope(Scope),
    /// Nothing that there is: only a known key is told so.
    Nothing,
}

/// Lets a request in that may come in, and says why to one that may not. What it lets in counts for its key until the
/// answer is sent.
pub(crate) async fn open(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let rule = request.extensions().get::<MatchedPath>().map(|path| door.rules.of(path.as_str(), request.method()));
    let wanted = match &rule {
        Some(Rule::Declared(Access::Open)) => Wanted::Anything,
        Some(Rule::Declared(Access::Needs(scope))) => Wanted::Scope(*scope),
        Some(Rule::Methods(_)) | None => Wanted::Nothing,
        Some(Rule::None) => {
            return ApiError::new(Code::InsufficientScope, "this route is closed: nobody may use it").into_response();
        }
    };
    let admitted = match door.check(&wanted, &mut request) {
        Ok(admitted) => admitted,
        Err(error) => return error.into_response(),
    };
    if let Some(Rule::Methods(allowed)) = rule {
        return no_method(&request, &allowed);
    }
    let response = next.run(request).await;
    match admitted {
        Some(admitted) => hold_until_sent(response, Span::none(), admitted),
        None => response,
    }
}

impl Door {
    /// Whether a request may have what it wants; its place among those of its key, if it has one.
    fn check(&self, wanted: &Wanted, request: &mut Request) -> Result<Option<Admitted>, ApiError> {
        if !self.keys.required() || matches!(wanted, Wanted::Anything) {
            return Ok(None);
        }
        let sent = bearer(request.headers())
            .ok_or_else(|| unknown("this server wants a key: send it as `Authorization: Bearer …`"))?;
        let known = self.keys.find(sent).ok_or_else(|| unknown("this key is not known"))?;
        tracing::Span::current().record("key", known.entry.id.as_str());
        if let Wanted::Scope(scope) = wanted
            && !known.entry.scopes.contains(scope)
        {
            let message = format!("this key may not do this: it needs the scope `{scope}`");
            return Err(ApiError::new(Code::InsufficientScope, message));
        }
        let admitted = known
            .meter
            .admit(&known.entry.limits, Instant::now().into_std())
            .map_err(|refused| too_many(&known, refused))?;
        let salt = if self.private_cache || known.entry.private_cache { known.entry.digest.salt() } else { 0 };
        request.extensions_mut().insert(known.entry.id.clone());
        request.extensions_mut().insert(caller::Known { salt, concurrent: known.entry.limits.concurrent });
        Ok(Some(admitted))
    }
}

/// What a client sent as its key.
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

fn too_many(known: &Known, refused: Refused) -> ApiError {
    let limits = &known.entry.limits;
    match refused {
        Refused::Rate(wait) => {
            let message = format!("this key may ask {} times a minute", limits.requests_per_minute.unwrap_or_default());
            ApiError { retry_after: Some(wait), ..ApiError::new(Code::RateLimited, message) }
        }
        Refused::Concurrency => {
            let message = format!("this key may ask for {} things at once", limits.concurrent.unwrap_or_default());
            ApiError::new(Code::ConcurrencyLimited, message)
        }
    }
}

/// Answers a method that the path does not have.
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

    use super::super::keys::Entry;
    use super::super::secret::Secret;
    use super::*;

    #[tokio::test]
    async fn a_route_that_nobody_declared_is_closed_to_everybody() {
        let secret = Secret::generate();
        let keys = Keys::open(None, vec![Entry::of_environment(&secret)]).unwrap();
        for keys in [keys, Keys::default()] {
            let door = Door::new(keys, Rules::default(), false);
            let mut router: Router =
                Router::new().route("/raw", get(|| async { "in" })).layer(from_fn_with_state(door, open));
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
