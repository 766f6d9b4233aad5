//! Cross-origin resource sharing: web pages that may use the server from a browser.

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Time that a browser may cache a preflight response.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(3600);

/// Adds CORS headers for pages of `origins`; `*` stands for all origins. Without origins no header is added, and
/// browsers hide the responses from pages of other origins. API keys are still required, and cookies are ignored.
pub(crate) fn allow<S: Clone + Send + Sync + 'static>(router: Router<S>, origins: &[String]) -> Router<S> {
    let listed: Vec<HeaderValue> = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    let allowed = match &listed[..] {
        [] => return router,
        origins if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        _ => AllowOrigin::list(listed),
    };
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // SDKs send headers of their own (`x-stainless-…`), and restricting header names protects nobody.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("retry-after-ms"),
            HeaderName::from_static("x-should-retry"),
            header::RETRY_AFTER,
        ])
        .max_age(PREFLIGHT_MAX_AGE);
    router.layer(layer)
}
