//! `/` and `/page/{file}`: the page that asks questions, shows how answers were found, and looks into the index.
//!
//! Its sources are in `page/` in TypeScript; `page/build` bundles them into `page/built`, which the program embeds
//! (`files`). A test checks that the two belong together.
//!
//! The page's `Content-Security-Policy` allows only scripts, styles and requests of its own server, so no other
//! script runs even if a passage ended up in the page as markup. It also forbids the calls that turn text into markup.

mod files;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{ApiError, Code, ErrorBody};
use super::path_param::PathParam;
use files::PageFile;

/// Content security policy of the page. The server of the page's own tests reads the same file.
const POLICY: HeaderValue = HeaderValue::from_static(include_str!("../../../page/src/policy.txt"));

const FRONT: &str = concat!(
    "Waymark ",
    env!("CARGO_PKG_VERSION"),
    ": an inference server for trained agentic RAG policies.\n\n",
    "POST /v1/chat/completions   OpenAI's chat interface\n",
    "POST /v1/agent              the typed trace of an episode\n",
    "POST /v1/search             evidence without a model\n",
    "POST /mcp                   both as tools of the Model Context Protocol\n",
    "POST /retrieve, /search     Search-R1's and RouteRAG's retrievers\n",
    "GET  /v1/models             what is served\n",
    "GET  /openapi.yaml          everything else\n",
);

/// Short description of the server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Message)]
pub(super) struct FrontMessage {
    /// A few lines of text.
    message: &'static str,
}

/// Returns the page, or a description of the server.
///
/// Returns the page if the client accepts `text/html` by name; JSON (`{"message": …}`) if it accepts that by name, as
/// RouteRAG's retrieval API responds; and plain text otherwise.
#[utoipa::path(get, path = "/", tag = "operation", responses(
    (status = 200, description = "the page, or a description of the server", content(
        (String = "text/html"), (FrontMessage = "application/json"), (String = "text/plain"),
    )),
))]
pub(super) async fn front(headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // Only browsers name HTML, so neither the order nor the quality of the ranges matters.
    let wants = |kind: &str| accepts.split([',', ';']).any(|accepted| accepted.trim() == kind);
    let mut response = if wants("text/html") {
        send(&files::INDEX, &headers)
    } else if wants("application/json") {
        axum::Json(FrontMessage { message: FRONT }).into_response()
    } else {
        FRONT.into_response()
    };
    // Caches must not give the page to a client that asked for JSON, nor a compressed one to a client that reads none.
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
    response
}

/// Returns a file of the page: its scripts, its style, its icon, or the licenses of the packages in it.
#[utoipa::path(get, path = "/page/{file}", operation_id = "pageFile", tag = "operation",
    params(("file" = String, Path, description = "name of the file")),
    responses(
        (status = 200, description = "the file", content(
            (String = "text/javascript"), (String = "text/css"), (String = "image/svg+xml"), (String = "text/plain"),
        )),
        (status = 304, description = "the client has the file already"),
        (status = 404, description = "no such file", body = ErrorBody),
    ))]
pub(super) async fn file(headers: HeaderMap, PathParam(name): PathParam<String>) -> Result<Response, ApiError> {
    let absent = || ApiError::new(Code::NotFound, format!("the page has no file `{name}`")).with_param("file");
    let found = files::find(&name).ok_or_else(absent)?;
    let mut response = send(found, &headers);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    Ok(response)
}

/// Builds the response with `file`, compressed if the client accepts that, or 304 if the client already has the file.
fn send(file: &PageFile, asked: &HeaderMap) -> Response {
    let holds = |name: HeaderName, wanted: &str| {
        let values = asked.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split([',', ';'])).any(|part| part.trim().trim_start_matches("W/") == wanted)
    };
    let mut response = if holds(header::IF_NONE_MATCH, &file.tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else if holds(header::ACCEPT_ENCODING, "gzip") {
        ([(header::CONTENT_ENCODING, "gzip")], file.compressed.clone()).into_response()
    } else {
        file.content.into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    // Weak, because the compressed file has the same tag.
    if let Ok(tag) = HeaderValue::try_from(format!("W/{}", file.tag)) {
        headers.insert(header::ETAG, tag);
    }
    // Checked by its tag each time, so a new server's page never runs with files of the old one.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"));
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_policy_allows_what_the_server_itself_sends_and_nothing_else() {
        let policy = POLICY.to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(policy.contains("require-trusted-types-for 'script'; trusted-types 'none'"), "{policy}");
        for loose in ["unsafe", "*", "http", "blob:", "'nonce"] {
            assert!(!policy.contains(loose), "{loose}");
        }
    }

    #[test]
    fn a_file_that_the_client_has_is_not_sent_again_and_a_compressed_one_only_on_request() {
        let script = files::find("app.js").unwrap();
        let ask = |name: HeaderName, value: &str| {
            let mut asked = HeaderMap::new();
            asked.insert(name, HeaderValue::try_from(value).unwrap());
            send(script, &asked)
        };
        let plain = send(script, &HeaderMap::new());
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        let tag = plain.headers()[header::ETAG].to_str().unwrap();
        assert_eq!(ask(header::IF_NONE_MATCH, tag).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(ask(header::IF_NONE_MATCH, "\"other\"").status(), StatusCode::OK);
        assert_eq!(ask(header::ACCEPT_ENCODING, "br, gzip;q=0.5").headers()[header::CONTENT_ENCODING], "gzip");
        assert!(!ask(header::ACCEPT_ENCODING, "br").headers().contains_key(header::CONTENT_ENCODING));
    }
}
