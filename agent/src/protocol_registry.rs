//! Registry of the protocols that `policy.toml` can name.

use std::sync::Arc;

use super::evo_rag::EvoRag;
use super::graphrag_r1::GraphragR1;
use super::path_router::PathRouter;
use super::plain::Plain;
use super::protocol::Protocol;
use super::routerag::RouteRag;
use super::search_r1::SearchR1;
use super::tearag::TeaRag;

/// Names of all protocols.
pub(super) const NAMES: &[&str] =
    &["routerag", "search-r1", "path-router", "graphrag-r1", "tearag", "evo-rag", "plain"];

/// Returns the protocol with this name.
pub(super) fn protocol(name: &str) -> Option<Arc<dyn Protocol>> {
    Some(match name {
        "routerag" => Arc::new(RouteRag),
        "search-r1" => Arc::new(SearchR1),
        "path-router" => Arc::new(PathRouter),
        "graphrag-r1" => Arc::new(GraphragR1),
        "tearag" => Arc::new(TeaRag),
        "evo-rag" => Arc::new(EvoRag),
        "plain" => Arc::new(Plain),
        _ => return None,
    })
}
