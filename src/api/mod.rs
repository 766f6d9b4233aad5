//! The HTTP side: one file per group of routes, with their wire types beside them.
//!
//! | file | what it holds |
//! |---|---|
//! | `auth` | who may do what: keys, scopes, limits |
//! | `chat` | `/v1/chat/completions`, OpenAI's interface |
//! | `completions`, `tokenize` | `/v1/completions`, `/tokenize`, `/detokenize`: texts without a conversation |
//! | `responses` | `/v1/responses`, OpenAI's newer interface: items, citations, responses that are kept |
//! | `agent` | `/v1/agent`, the typed trace |
//! | `mcp` | `/mcp`, the Model Context Protocol: searching and asking as tools |
//! | `search`, `vector_stores`, `embeddings`, `models`, `health`, `openapi` | the other routes |
//! | `page` | lists, a page at a time |
//! | `documents`, `library`, `commits` | what the index holds, changing it, and changes that nobody waits for |
//! | `playground` | `/`, a page to try it with |
//! | `policies`, `shelf` | what is served, and changing it |
//! | `traces`, `archive` | what was written down about episodes, and running them again |
//! | `trainers` | the retrievers that the reference systems' trainers call |
//! | `knobs`, `rag` | what requests say about sampling, and about searching |
//! | `episodes`, `usage` | what the routes that answer share: starting episodes, and what they cost |
//! | `cors`, `lifetime` | which pages may use it; how long a request may hold its connection |
//! | `found` | passages as OpenAI's interface has them |
//! | `beside` | work that would hold others up |
//! | `body` | reading requests, and refusing what is in them by name |
//! | `error`, `refusal` | the one table of errors, and how other layers' errors map to it |
//! | `chunks` | what both kinds of completions are streamed by |
//! | `follow`, `sse`, `resume` | episodes as streams of events, events as streams of bytes, and streams that outlive their sockets |
//! | `observe`, `traceparent`, `guard`, `metrics`, `drain` | what happens around every request |
//! | `debug` | what the server is doing now, for its operator |
//! | `state` | what every handler can reach |

pub mod agent;
mod archive;
pub mod auth;
mod beside;
mod body;
pub mod chat;
mod chunks;
pub mod commits;
pub mod completions;
mod cors;
pub mod debug;
pub mod documents;
pub mod drain;
pub mod embeddings;
mod episodes;
pub mod error;
mod follow;
mod found;
mod guard;
pub mod health;
mod knobs;
mod library;
pub mod lifetime;
mod mcp;
mod metrics;
pub mod models;
mod observe;
mod openapi;
mod page;
mod playground;
pub mod policies;
pub mod rag;
mod refusal;
pub mod responses;
mod resume;
pub mod search;
mod shelf;
mod sse;
mod state;
pub mod tokenize;
mod traceparent;
pub mod traces;
pub mod trainers;
pub mod usage;
pub mod vector_stores;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use utoipa_axum::routes;

use crate::schema;
use auth::{Door, Routes};

pub use embeddings::{ServedEmbedder, TextEmbedder};
pub use error::{ApiError, Code};
pub use library::Library;
pub use metrics::Metrics;
pub use openapi::{document, document_yaml};
pub use responses::Responses;
pub use shelf::{Policies, PolicyStore, Served};
pub use state::AppState;

/// Every route, with what it needs and its description.
fn routes() -> Routes {
    work().merge(information())
}

/// Routes that compute: admitted, counted, drained.
fn work() -> Routes {
    Routes::new()
        .infer(routes!(chat::create))
        .infer(routes!(chat::create_short))
        .infer(routes!(responses::create))
        .infer(routes!(agent::create))
        .infer(routes!(mcp::receive))
        .infer(routes!(completions::create))
        .infer(routes!(tokenize::tokenize))
        .infer(routes!(tokenize::detokenize))
        .infer(routes!(search::search))
        .infer(routes!(vector_stores::search))
        .infer(routes!(embeddings::create))
        .index(routes!(documents::upsert, documents::list))
        .index(routes!(documents::get, documents::delete))
        .admin(routes!(policies::load, policies::list))
        .admin(routes!(policies::unload))
        .infer(routes!(traces::replay::create))
        .infer(routes!(trainers::search_r1::retrieve))
        .infer(routes!(trainers::route_rag::search))
        .infer(routes!(trainers::graph_r1::query))
}

/// Routes that only tell.
fn information() -> Routes {
    Routes::new()
        .infer(routes!(responses::retrieve::retrieve, responses::delete::delete))
        .infer(routes!(responses::cancel::cancel))
        .index(routes!(commits::get))
        .infer(routes!(models::list))
        .infer(routes!(models::get))
        .infer(routes!(agent::resume::get))
        .infer(routes!(traces::list))
        .infer(routes!(traces::get, traces::delete))
        .open(routes!(health::health))
        .open(routes!(health::ready))
        .admin(routes!(health::metrics))
        .admin(routes!(debug::state))
        .open(routes!(playground::front))
        .open(routes!(openapi::yaml))
        .open(routes!(openapi::json))
}

/// What answers where there is no room for another connection: always the same.
pub fn overloaded(state: AppState) -> Router {
    Router::new().fallback(refusal::overloaded).layer(from_fn_with_state(state, observe::observe))
}

/// The whole interface over `state`. A request comes through the layers from the last one to the first.
pub fn router(state: AppState) -> Router {
    let admit = from_fn_with_state(state.clone(), observe::admit);
    let (router, mut rules, _) = work().map(|work| work.route_layer(admit)).merge(information()).split();
    if state.config.open_metrics {
        rules.open("/metrics");
    }
    let door = Door::new(state.keys.clone(), rules, state.config.private_cache);
    let router = router
        .fallback(refusal::no_route)
        .layer(from_fn_with_state(door, auth::open))
        .layer(from_fn(refusal::contain))
        .layer(DefaultBodyLimit::max(state.config.body_limit));
    cors::allow(router, &state.config.cors_origins)
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}
