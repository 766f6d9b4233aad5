//! Which pages may use the server from a browser.

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// How long a browser may remember what it was told.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The same routes for pages of these origins, `*` being all; of none where there are none: without the headers that this
/// adds, a browser keeps what it got from the page. A key is needed all the same, and no cookie is ever looked at.
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
        // Clients send headers of their own (`x-stainless-…`); which ones protects nobody.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("retry-after-ms"),
            HeaderName::from_static("x-should-retry"),
            header::RETRY_AFTER,
        ])
        .max_age(REMEMBERED);
    router.layer(layer)
}
