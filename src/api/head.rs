//! Middleware that checks the head of every request, before anything else reads it: `Host`, and headers that must not
//! be repeated.
//!
//! A server without API keys trusts everyone who can reach it. A web page can reach it from its visitor's browser by
//! DNS rebinding: the page's own host name is made to resolve to this server, and the browser takes the requests for
//! same-origin ones. Their `Host` is that name, so a server without keys answers only to hosts that no attacker's page
//! can have: IP addresses, `localhost`, and the names given by `--allowed-host`.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::{ApiError, Code};

/// Hosts that the server answers to; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct HostRule {
    /// Names in addition to IP addresses and `localhost`, in lower case; `*` for all. `None` allows every host.
    allowed: Option<Arc<[String]>>,
}

impl HostRule {
    /// Creates the rule of a server. With keys, every host is allowed unless names are given.
    pub(crate) fn new(allowed: &[String], has_keys: bool) -> Self {
        let open = has_keys && allowed.is_empty();
        Self { allowed: (!open).then(|| allowed.iter().map(|name| name.to_ascii_lowercase()).collect()) }
    }

    /// Checks the head of a request.
    ///
    /// # Errors
    /// 400 for a head that is ambiguous or incomplete, 403 for a host that is not allowed.
    fn check(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        at_most_one(headers, &header::AUTHORIZATION)?;
        let host = at_most_one(headers, &header::HOST)?;
        if host.is_none() && version >= Version::HTTP_11 {
            return Err(ApiError::new(Code::InvalidHeader, "the request has no `host` header"));
        }
        let Some(allowed) = &self.allowed else { return Ok(()) };
        // The authority of a request target replaces the header, so both must be allowed.
        let target = uri.authority().map(|authority| authority.as_str().as_bytes());
        let hosts = [host.map(HeaderValue::as_bytes), target];
        match hosts.into_iter().flatten().find(|host| !is_allowed(host, allowed)) {
            None => Ok(()),
            Some(host) => {
                // Truncated, because the message repeats the host and a client may send any length.
                let host: String = String::from_utf8_lossy(host).chars().take(100).collect();
                let message = format!("the host `{host}` is not allowed: start the server with `--allowed-host`");
                Err(ApiError::new(Code::HostNotAllowed, message))
            }
        }
    }
}

/// Mark of a request whose head has both `content-length` and `transfer-encoding`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContradictoryLengths;

/// Refuses requests whose head breaks `rule`.
pub(crate) async fn check(State(rule): State<HostRule>, request: Request, next: Next) -> Response {
    if request.extensions().get::<ContradictoryLengths>().is_some() {
        let message = "the request has both `content-length` and `transfer-encoding`";
        return ApiError::new(Code::InvalidHeader, message).into_response();
    }
    match rule.check(request.version(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Returns the only value of a header, if there is one. If there were several, this server and a proxy in front of it
/// might each read a different one.
fn at_most_one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    match values.next() {
        None => Ok(value),
        Some(_) => Err(ApiError::new(Code::InvalidHeader, format!("the header `{name}` must not be repeated"))),
    }
}

/// Returns `true` for a `Host` that is an IP address, `localhost`, or one of the `allowed` names.
fn is_allowed(host: &[u8], allowed: &[String]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address.parse::<Ipv6Addr>().is_ok() && is_port(rest);
    }
    let (name, port) = host.find(':').map_or((host, ""), |at| host.split_at(at));
    // A final dot stands for the root of the DNS.
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    // DNS rebinding needs a name that an attacker controls, and nobody controls these.
    let known = name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok();
    is_port(port) && (known || allowed.iter().any(|allowed| allowed == "*" || *allowed == name))
}

/// Returns `true` for nothing, or a colon and a port.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_localhost_and_given_names_are_allowed() {
        let allowed = ["rag.example.org".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "10.1.2.3:80",
            "[::1]:8080",
            "[fe80::1]",
            "localhost",
            "LocalHost:1",
            "a.localhost",
            "rag.example.org",
            "RAG.example.org.:443",
        ] {
            assert!(is_allowed(host.as_bytes(), &allowed), "{host}");
        }
        for host in [
            "",
            "evil.test",
            "evil.test:8080",
            "localhost.evil.test",
            "127.0.0.1.evil.test",
            "notlocalhost",
            "sub.rag.example.org",
            "127.0.0.1:80@evil.test",
            "[evil.test]",
            "[::1]evil.test",
            "localhost:evil",
            "0x7f.1",
        ] {
            assert!(!is_allowed(host.as_bytes(), &allowed), "{host}");
        }
        assert!(is_allowed(b"evil.test", &["*".to_owned()]) && !is_allowed(b"\xff", &["*".to_owned()]));
    }

    #[test]
    fn with_keys_any_host_will_do_unless_names_are_given() {
        let heads = |rule: &HostRule| {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("evil.test"))]);
            rule.check(Version::HTTP_11, &Uri::from_static("/"), &headers).is_ok()
        };
        let names = ["rag.example.org".to_owned()];
        assert!(heads(&HostRule::new(&[], true)));
        assert!(!heads(&HostRule::new(&names, true)) && !heads(&HostRule::new(&[], false)));
    }

    #[test]
    fn the_host_of_the_target_counts_too() {
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("localhost"))]);
        let of = |uri: &'static str| {
            HostRule::new(&[], false).check(Version::HTTP_11, &Uri::from_static(uri), &headers).map_err(|it| it.code)
        };
        assert_eq!(of("http://evil.test/v1/documents"), Err(Code::HostNotAllowed));
        assert_eq!(of("http://localhost/v1/documents"), Ok(()));
    }
}
