//! Extractor that checks the headers of an MCP client.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};

use super::message::McpFault;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;

/// Supported revisions of the protocol, newest first.
const VERSIONS: [&str; 2] = ["2025-06-18", "2025-03-26"];

/// Header with the client's revision. Without it the older revision applies, which is handled the same way.
const VERSION: &str = "mcp-protocol-version";

/// Media ranges in `accept` that include JSON, most specific first.
const JSON: [&str; 3] = ["application/json", "application/*", "*/*"];

/// Client whose headers passed the checks.
#[derive(Debug)]
pub(crate) struct McpClient {
    version: Option<HeaderValue>,
}

impl FromRequestParts<AppState> for McpClient {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        if !origin_allowed(&parts.headers, &state.config.cors_origins) {
            let message = "pages of this origin may not use this server: allow it with `--cors-origin`";
            return Err(ApiError::new(Code::OriginNotAllowed, message));
        }
        if !accepts_json(&parts.headers) {
            let message = "responses are JSON: send `accept: application/json, text/event-stream`";
            return Err(ApiError::new(Code::NotAcceptable, message));
        }
        Ok(McpClient { version: parts.headers.get(VERSION).cloned() })
    }
}

impl McpClient {
    /// Checks that the client's revision is supported.
    pub(super) fn check_version(&self) -> Result<(), McpFault> {
        let Some(sent) = &self.version else { return Ok(()) };
        if VERSIONS.iter().any(|version| version.as_bytes() == sent.as_bytes()) {
            return Ok(());
        }
        let message = format!("`{VERSION}`: supported revisions are {}", VERSIONS.join(" and "));
        Err(McpFault::request(ApiError::invalid(VERSION, message)))
    }
}

/// Returns the revision to use with a client that requests `wanted`.
pub(super) fn negotiate(wanted: &str) -> &'static str {
    // The newest, as the protocol asks of a server that does not know the requested revision.
    VERSIONS.into_iter().find(|version| *version == wanted).unwrap_or(VERSIONS[0])
}

/// Returns `true` if a request has no `Origin` header, so it does not come from a browser, or an allowed one. CORS
/// alone does not protect against DNS rebinding, where a page's own host name resolves to this server and the browser
/// takes the request for a same-origin one.
fn origin_allowed(headers: &HeaderMap, allowed: &[String]) -> bool {
    let known =
        |origin: &HeaderValue| allowed.iter().any(|known| known == "*" || known.as_bytes() == origin.as_bytes());
    headers.get_all(header::ORIGIN).iter().all(known)
}

/// Returns `true` if the client accepts JSON. The most specific matching range decides.
fn accepts_json(headers: &HeaderMap) -> bool {
    if !headers.contains_key(header::ACCEPT) {
        return true;
    }
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let fitting = lines.flat_map(|line| line.split(',')).filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next()?.to_ascii_lowercase();
        let place = JSON.iter().position(|name| *name == kind)?;
        Some((place, !parts.any(is_refusal)))
    });
    fitting.min_by_key(|(place, _)| *place).is_some_and(|(_, wanted)| wanted)
}

/// Returns `true` for the parameter `q=0`, which excludes a media range.
fn is_refusal(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>().is_ok_and(|quality| quality == 0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn headers(name: &header::HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn json_is_accepted_by_its_name_and_by_wider_ones() {
        let accepts = |values: &[&str]| accepts_json(&headers(&header::ACCEPT, values));
        assert!(accepts(&[]));
        for value in
            ["application/json, text/event-stream", "Application/JSON;q=0.5", "*/*", "text/html, application/*"]
        {
            assert!(accepts(&[value]), "{value}");
        }
        assert!(accepts(&["text/event-stream", "application/json"]));
        for value in
            ["text/event-stream", "", "application/json;q=0", "*/*, application/json; q=0.0", "application/jsonp"]
        {
            assert!(!accepts(&[value]), "{value}");
        }
    }

    #[test]
    fn no_origin_or_an_allowed_one() {
        let allowed = ["https://a.test".to_owned()];
        let comes = |values: &[&str], allowed: &[String]| origin_allowed(&headers(&header::ORIGIN, values), allowed);
        assert!(comes(&[], &[]) && comes(&["https://a.test"], &allowed));
        for origin in ["http://a.test", "https://a.test:8443", "https://a.test.evil.test", "null", ""] {
            assert!(!comes(&[origin], &allowed), "{origin}");
        }
        assert!(!comes(&["https://a.test", "https://evil.test"], &allowed));
        assert!(comes(&["https://evil.test"], &["*".to_owned()]));
    }
}
