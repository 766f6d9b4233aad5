//! HTTP interface: one file per group of routes, together with their wire types.
//!
//! | file | content |
//! |---|---|
//! | `auth` | API keys, scopes and limits |
//! | `chat` | `/v1/chat/completions`, OpenAI's interface |
//! | `completions`, `tokenize` | `/v1/completions`, `/tokenize`, `/detokenize`: text without a conversation |
//! | `generate` | `/inference/v1/generate`: token IDs in and out, for a loop in another process |
//! | `responses` | `/v1/responses`, OpenAI's newer interface: items, citations, stored responses |
//! | `answer_calls`, `call_history` | tool calls in answers, and in the messages of a conversation |
//! | `agent` | `/v1/agent`, an episode with its typed trace |
//! | `mcp` | `/mcp`, the Model Context Protocol: `search` and `ask` as tools |
//! | `vector_stores`, `files`, `json_file` | vector stores of clients, their files, and the records of both on disk |
//! | `search`, `embeddings`, `rerank`, `models`, `health`, `openapi` | the other routes |
//! | `pagination` | pages of lists |
//! | `indexes` | several indexes, and the choice between them |
//! | `documents`, `library` | documents of the index, and the queue of changes to them |
//! | `commits`, `commit_response`, `snapshots` | background changes, results of changes, and earlier snapshots |
//! | `explore` | `/v1/index`, routes for browsing the index |
//! | `playground` | `/`, the web page, and its files |
//! | `api_keys` | `/v1/keys`, keys in the server's state |
//! | `policies`, `policy_registry` | the served policies, and loading and unloading them |
//! | `traces` | traces of episodes, and replaying them |
//! | `conversations` | `/v1/conversations`, conversations that responses continue |
//! | `records` | records of requests in the [store](crate::store) |
//! | `rollouts` | `/v1/rollouts`, trajectories with masks and rewards for trainers that run elsewhere |
//! | `trainers` | retrieval interfaces of the reference systems' trainers |
//! | `sampling_params`, `rag`, `vllm_options` | options of requests for sampling and for searching, and those of vLLM |
//! | `episodes`, `usage` | starting episodes, and counting their tokens |
//! | `head` | checks of the heads of all requests: `Host`, and repeated headers |
//! | `cors`, `lifetime` | allowed origins, and deadlines of connections |
//! | `search_results` | passages in the format of OpenAI's interface |
//! | `blocking` | work off the async threads |
//! | `fair_slots` | bounded numbers of places that keys share |
//! | `encoding` | bounds of texts before they are encoded, and the memory for encoding them |
//! | `body`, `text_or`, `path_param` | parsing of request bodies, and of parameters in paths |
//! | `metadata` | checks of the pairs that clients attach to objects |
//! | `error`, `error_mapping` | the table of errors, and the mapping of other layers' errors to it |
//! | `chunks` | streaming of both kinds of completions |
//! | `follow`, `sse`, `resume` | event streams of episodes, their encoding, and resumable streams |
//! | `observe`, `traceparent`, `guard`, `metrics`, `drain` | logging, metrics and shutdown around every request |
//! | `debug`, `load` | current state of the server and its load in numbers, for its operator |
//! | `state` | state shared by all handlers |

pub mod agent;
mod answer_calls;
pub mod api_keys;
pub mod auth;
mod blocking;
mod body;
mod call_history;
pub mod chat;
mod chunks;
mod commit_meter;
pub mod commit_response;
pub mod commits;
mod compile_slots;
pub mod completions;
pub mod conversations;
mod cors;
pub mod debug;
pub mod documents;
pub mod drain;
mod embedding_tokens;
pub mod embeddings;
mod encoder_queue;
mod encoding;
mod episodes;
pub mod error;
pub(crate) mod error_mapping;
pub mod explore;
mod fair_slots;
pub mod files;
mod follow;
pub mod generate;
mod guard;
pub(crate) mod head;
pub mod health;
pub(crate) mod hint;
mod indexes;
mod json_file;
mod library;
pub mod lifetime;
pub mod load;
mod logprob_room;
mod mcp;
mod metadata;
mod metrics;
pub mod models;
mod observe;
mod openapi;
pub mod pagination;
mod path_param;
mod playground;
pub mod policies;
mod policy_registry;
pub mod rag;
mod record_folder;
mod records;
pub mod rerank;
pub mod responses;
mod resume;
pub mod rollouts;
mod sampling_params;
pub mod search;
mod search_results;
pub mod snapshots;
mod sse;
mod state;
mod text_or;
pub mod tokenize;
mod traceparent;
pub mod traces;
pub mod trainers;
mod unknown_id;
pub mod usage;
pub mod vector_stores;
pub mod vllm_options;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn_with_state, map_response};
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::routes;

use auth::{AuthGate, ProtectedRoutes};

pub use embeddings::ServedEmbedder;
pub use error::{ApiError, Code};
pub use library::Library;
pub use metrics::ServerMetrics;
pub use openapi::{document, document_yaml};
pub use policy_registry::{PolicyRegistry, PolicyStore, ServedPolicy};
pub use rerank::ServedReranker;
pub use responses::Responses;
pub use state::AppState;
pub use vector_stores::{IndexParts, OpenIndex, VectorStores};

/// Returns all routes, with their access rules and OpenAPI descriptions.
fn routes() -> ProtectedRoutes {
    work().merge(information())
}

/// Routes that compute: refused while draining, counted, and waited for by a drain.
fn work() -> ProtectedRoutes {
    ProtectedRoutes::new()
        .infer(routes!(chat::create))
        .infer(routes!(chat::create_short))
        .infer(routes!(responses::create))
        .infer(routes!(responses::input_tokens::count))
        .infer(routes!(agent::create))
        .infer(routes!(mcp::receive))
        .infer(routes!(completions::create))
        .infer(routes!(generate::create))
        .infer(routes!(tokenize::tokenize))
        .infer(routes!(tokenize::detokenize))
        .infer(routes!(search::search))
        .infer(routes!(vector_stores::search::search))
        .index(routes!(vector_stores::create, vector_stores::list))
        .index(routes!(vector_stores::retrieve, vector_stores::update, vector_stores::delete))
        .index(routes!(vector_stores::store_files::create, vector_stores::store_files::list))
        .index(routes!(
            vector_stores::store_files::retrieve,
            vector_stores::store_files::update,
            vector_stores::store_files::delete
        ))
        .index(routes!(vector_stores::store_files::content))
        .index(routes!(vector_stores::file_batches::create))
        .index(routes!(vector_stores::file_batches::retrieve))
        .index(routes!(vector_stores::file_batches::cancel))
        .index(routes!(vector_stores::file_batches::list_files))
        .index(routes!(files::create, files::list))
        .index(routes!(files::retrieve, files::delete))
        .index(routes!(files::content))
        .infer(routes!(explore::nodes::find))
        .infer(routes!(embeddings::create))
        .infer(routes!(rerank::create))
        .index(routes!(documents::upsert, documents::list))
        .index(routes!(documents::get, documents::delete))
        .index(routes!(snapshots::restore))
        .admin(routes!(policies::load, policies::list))
        .admin(routes!(policies::unload))
        .infer(routes!(traces::replay::create))
        .infer(routes!(rollouts::create))
        .infer(routes!(trainers::search_r1::retrieve))
        .infer(routes!(trainers::route_rag::search))
        .infer(routes!(trainers::graphrag_r1::query))
}

/// Routes that only return information, also while draining.
fn information() -> ProtectedRoutes {
    ProtectedRoutes::new()
        .infer(routes!(responses::retrieve::retrieve, responses::delete::delete))
        .infer(routes!(responses::cancel::cancel))
        .infer(routes!(responses::input_items::list))
        .infer(routes!(conversations::create))
        .infer(routes!(conversations::retrieve, conversations::update, conversations::delete))
        .infer(routes!(conversations::items::list, conversations::items::create))
        .infer(routes!(conversations::items::retrieve, conversations::items::delete))
        .index(routes!(commits::get))
        .infer(routes!(explore::summary::get))
        .infer(routes!(explore::questions::list))
        .infer(routes!(explore::neighbors::list))
        .infer(routes!(explore::passages::get))
        .index(routes!(snapshots::list))
        .infer(routes!(models::list))
        .infer(routes!(models::get))
        .infer(routes!(agent::resume::get, agent::resume::cancel))
        .infer(routes!(traces::list))
        .infer(routes!(traces::get, traces::delete))
        .open(routes!(health::health))
        .open(routes!(health::ready))
        .open(routes!(health::ping))
        .infer(routes!(health::version))
        .admin(routes!(health::metrics))
        .admin(routes!(api_keys::list, api_keys::create))
        .admin(routes!(api_keys::revoke))
        .admin(routes!(debug::state))
        .admin(routes!(load::load))
        .open(routes!(playground::front))
        .open(routes!(playground::file))
        .open(routes!(openapi::yaml))
        .open(routes!(openapi::json))
}

/// Router for connections beyond the limit. It answers probes, since an orchestrator would otherwise restart a server
/// whose clients hold all connections, and every other request with the same error.
pub fn overloaded(state: AppState) -> Router {
    Router::new()
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .fallback(error_mapping::overloaded)
        .layer(map_response(error_mapping::close_connection))
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}

/// Builds the router of the whole interface. A request passes the layers from the last one added to the first.
pub fn router(state: AppState) -> Router {
    let admit = from_fn_with_state(state.clone(), observe::admit);
    // Only routes that compute are refused during a drain; the others stay available.
    let (router, mut rules, _) = work().map(|work| work.route_layer(admit)).merge(information()).split();
    if state.config.open_metrics {
        rules.open("/metrics");
    }
    let gate = AuthGate::new(state.keys.clone(), state.config.address_limits, rules, state.config.private_cache);
    let router = router
        .fallback(error_mapping::no_route)
        .layer(from_fn_with_state(gate, auth::authorize))
        // Within `observe`, so a panic is logged and counted as a response with status 500.
        .layer(CatchPanicLayer::custom(error_mapping::panicked))
        .layer(DefaultBodyLimit::max(state.config.body_limit));
    // Outside of the gate, because preflight requests carry no key.
    let hosts = head::HostRule::new(&state.config.allowed_hosts, state.keys.required());
    cors::allow(router, &state.config.cors_origins)
        .layer(from_fn_with_state(hosts, head::check))
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}
