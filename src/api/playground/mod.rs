//! `/`: the playground, a page that asks a question and shows the trace live, or shows a saved one.
//!
//! The page is a single file without external resources, so a copy on disk can show saved runs too. `element.js`:
//! creates page elements · `graph.js`: the graph of a search · `trace.js`: an episode, event by event · `run.js`: one
//! run, saved and opened · `ask.js`: the form and the requests
//!
//! Its `Content-Security-Policy` allows only its own script and style, by their hashes, so that no other script runs
//! even if a passage ended up in the page as markup. It also forbids the calls that turn text into markup.

use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

const PAGE: &str = concat!(
    include_str!("head.html"),
    "<style>\n",
    include_str!("style.css"),
    "</style>\n</head>\n",
    include_str!("body.html"),
    "<script>\n",
    include_str!("element.js"),
    include_str!("graph.js"),
    include_str!("trace.js"),
    include_str!("run.js"),
    include_str!("ask.js"),
    "</script>\n</body>\n</html>\n",
);

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

/// Content security policy of the page, computed from the page so that the hashes always match.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| HeaderValue::try_from(policy(PAGE)).ok());

/// Short description of the server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Message)]
pub(super) struct FrontMessage {
    /// A few lines of text.
    message: &'static str,
}

/// Returns the playground, or a description of the server.
///
/// Returns the page if the client accepts `text/html` by name; JSON (`{"message": …}`) if it accepts that by name, as
/// RouteRAG's retrieval API responds; and plain text otherwise.
#[utoipa::path(get, path = "/", tag = "operation", responses(
    (status = 200, description = "the playground, or a description of the server", content(
        (String = "text/html"), (FrontMessage = "application/json"), (String = "text/plain"),
    )),
))]
pub(super) async fn front(headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let wants = |kind: &str| accepts.split([',', ';']).any(|accepted| accepted.trim() == kind);
    let mut response = if wants("text/html") {
        page()
    } else if wants("application/json") {
        axum::Json(FrontMessage { message: FRONT }).into_response()
    } else {
        FRONT.into_response()
    };
    // Caches must not give the page to a client that asked for JSON.
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

fn page() -> Response {
    let mut response = PAGE.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin"));
    // The header is always set: if the policy could not be built, it allows nothing.
    let none = HeaderValue::from_static("default-src 'none'");
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone().unwrap_or(none));
    response
}

/// Builds the content security policy of `page`: its own script and style, and requests to its own server.
fn policy(page: &str) -> String {
    let hash = |tag: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(inside(page, tag))));
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash("script"),
        hash("style"),
    )
}

/// Returns the text between the first pair of tags `tag`.
fn inside<'p>(page: &'p str, tag: &str) -> &'p str {
    let open = format!("<{tag}>");
    let close = format!("</{tag}>");
    page.split_once(&open).and_then(|(_, rest)| Some(rest.split_once(&close)?.0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_alone() {
        assert!(inside(PAGE, "style").len() > 100 && inside(PAGE, "script").len() > 1000);
        assert!(PAGE.len() < 200_000, "{} bytes", PAGE.len());
        for tag in ["<script", "<style", "<html", "<head>", "<body>", "<main"] {
            assert_eq!(PAGE.matches(tag).count(), 1, "{tag}");
        }
        for outside in ["http:", "https:", "//www", "src=", "@import", "url(", "<base", "<iframe", "ws:"] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }

    #[test]
    fn nothing_that_comes_over_the_wire_becomes_markup_and_no_key_is_kept() {
        let script = inside(PAGE, "script");
        for call in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "setHTML",
            "createContextualFragment",
            "DOMParser",
            "localStorage",
            "sessionStorage",
            "cookie",
            "indexedDB",
        ] {
            assert!(!script.contains(call), "{call}");
        }
        // The content security policy would block a style or handler in an attribute, silently.
        let markup = PAGE.split("<script>").next().unwrap_or_default();
        assert!(!markup.contains("style=\"") && !markup.contains(" on"), "{markup}");
    }

    #[test]
    fn a_graph_is_drawn_of_elements_and_looks_by_its_style_sheet() {
        let script = inside(PAGE, "script");
        // A single function creates all of them, in a namespace that the page's own markup has.
        assert_eq!(script.matches("createElementNS(DRAWING, name)").count(), 1);
        assert_eq!(script.matches("createElementNS").count(), 1);
        assert!(PAGE.contains("<template id=\"drawing\"><svg></svg></template>"));
        // The content security policy would block a style in an attribute, silently.
        assert!(!script.contains("style:") && !script.contains("setAttribute(\"style\""));
    }

    #[test]
    fn what_supports_an_answer_is_the_servers_to_say() {
        assert!(PAGE.contains("cite(event.citations, shown, answered.made)") && !PAGE.contains(".includes("));
    }

    #[test]
    fn a_policy_that_does_not_search_is_told_nothing_about_it() {
        for part in ["mode", "k"] {
            assert!(PAGE.contains(&format!("if (canSearch() && field(\"{part}\").value) rag.{part} = ")), "{part}");
        }
    }

    #[test]
    fn the_policy_names_what_the_page_holds_and_nothing_else() {
        let policy = policy(PAGE);
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        let changed = PAGE.replacen("\"use strict\";", "\"use strict\"; ", 1);
        assert_ne!(super::policy(&changed), policy);
        // The example of the CSP specification's section on hashes.
        let known = super::policy("<script>alert('Hello, world.');</script>");
        assert!(known.contains("'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='"), "{known}");
    }
}
