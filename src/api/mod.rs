//! The HTTP side: one file per group of routes, with their wire types beside them.
//!
//! | file | what it holds |
//! |---|---|
//! | `chat` | `/v1/chat/completions`, OpenAI's interface |
//! | `completions`, `tokenize` | `/v1/completions`, `/tokenize`, `/detokenize`: texts without a conversation |
//! | `agent` | `/v1/agent`, the typed trace |
//! | `search`, `embeddings`, `models`, `health`, `openapi` | the other routes |
//! | `documents`, `library` | what the index holds, and changing it |
//! | `policies`, `shelf` | what is served, and changing it |
//! | `trainers` | the retrievers that the reference systems' trainers call |
//! | `knobs` | what requests say about sampling |
//! | `body` | reading requests, and refusing what is in them by name |
//! | `error`, `refusal` | the one table of errors, and how other layers' errors map to it |
//! | `follow`, `sse` | episodes as streams of events, events as streams of bytes |
//! | `observe`, `metrics`, `drain` | what happens around every request |
//! | `schema` | the shapes of the index's types |
//! | `state` | what every handler can reach |

pub mod agent;
mod body;
pub mod chat;
pub mod completions;
pub mod documents;
pub mod drain;
pub mod embeddings;
mod episodes;
pub mod error;
mod follow;
pub mod health;
mod knobs;
mod library;
mod metrics;
pub mod models;
mod observe;
mod openapi;
pub mod policies;
pub mod rag;
mod refusal;
mod schema;
pub mod search;
mod shelf;
mod sse;
mod state;
pub mod tokenize;
pub mod trainers;
pub mod usage;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use embeddings::{ServedEmbedder, TextEmbedder};
pub use error::{ApiError, Code};
pub use library::Library;
pub use metrics::Metrics;
pub use openapi::{document, document_yaml};
pub use shelf::{Policies, PolicyStore, Served};
pub use state::AppState;

/// Every route, with its description.
fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(openapi::Head::openapi()).merge(work()).merge(information())
}

/// Routes that compute: admitted, counted, drained.
fn work() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(chat::create))
        .routes(routes!(chat::create_short))
        .routes(routes!(agent::create))
        .routes(routes!(completions::create))
        .routes(routes!(tokenize::tokenize))
        .routes(routes!(tokenize::detokenize))
        .routes(routes!(search::search))
        .routes(routes!(embeddings::create))
        .routes(routes!(documents::upsert, documents::list))
        .routes(routes!(documents::get, documents::delete))
        .routes(routes!(policies::load, policies::list))
        .routes(routes!(policies::unload))
        .routes(routes!(trainers::search_r1::retrieve))
        .routes(routes!(trainers::route_rag::search))
        .routes(routes!(trainers::graph_r1::query))
}

/// Routes that only tell.
fn information() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(models::list))
        .routes(routes!(models::get))
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(health::front))
        .routes(routes!(openapi::yaml))
        .routes(routes!(openapi::json))
}

/// The whole interface over `state`.
pub fn router(state: AppState) -> Router {
    let work: Router<AppState> = work().into();
    let information: Router<AppState> = information().into();
    work.route_layer(from_fn_with_state(state.clone(), observe::admit))
        .merge(information)
        .fallback(refusal::no_route)
        .method_not_allowed_fallback(refusal::no_method)
        .layer(from_fn(refusal::contain))
        .layer(DefaultBodyLimit::max(state.config.body_limit))
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}
