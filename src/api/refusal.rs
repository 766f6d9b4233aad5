//! How errors of other layers, and of no layer, become rows of the table.

use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use waymark_models::ModelError;

use super::error::{ApiError, Code};
use crate::agent::AgentError;
use crate::engine::EngineError;

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let message = error.to_string();
        match error {
            AgentError::Conversation(_) => Self::invalid("messages", message),
            AgentError::TooLong { .. } => Self::new(Code::ContextLengthExceeded, message).with_param("messages"),
            AgentError::Mode { .. } | AgentError::Unshown { .. } => {
                Self::new(Code::UnsupportedParameter, message).with_param("rag.mode")
            }
            AgentError::NoIndex { .. } | AgentError::Speakers { .. } | AgentError::Blind { .. } => {
                Self::new(Code::NotConfigured, message).with_param("model")
            }
            AgentError::NoGuide(_) => Self::new(Code::UnsupportedParameter, message).with_param("rag.guided"),
            AgentError::Option { field, reason } => Self::invalid(field, format!("`{field}`: {reason}")),
            AgentError::Shape(_) => Self::invalid("response_format", format!("`response_format`: {message}")),
            AgentError::Tool { .. } => Self::invalid("tools", format!("`tools`: {message}")),
            // A template may refuse an order of roles: the client's doing.
            AgentError::Text(ModelError::Template(_)) => Self::invalid("messages", message),
            // What the policy's own settings and the request's say together about sampling.
            AgentError::Text(ModelError::Input(_)) => Self::new(Code::InvalidValue, message),
            AgentError::Text(_) | AgentError::Policy { .. } | AgentError::Panicked | AgentError::Gone => {
                Self::new(Code::Internal, message)
            }
            AgentError::Engine(error) => error.into(),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::QueueFull { .. } => Self::new(Code::QueueFull, message),
            EngineError::TooLong { .. } => Self::new(Code::ContextLengthExceeded, message).with_param("messages"),
            EngineError::Request(_) => Self::new(Code::InvalidValue, message),
            EngineError::Backend(_) | EngineError::Sample(_) => Self::new(Code::Internal, message),
            EngineError::Adapter(_) | EngineError::Weights(_) | EngineError::Dead(_) => {
                Self::new(Code::EngineUnavailable, message)
            }
        }
    }
}

/// Answers a path that no route has.
pub(crate) async fn no_route(request: Request) -> ApiError {
    ApiError::new(Code::NotFound, format!("there is no route {} {}", request.method(), request.uri().path()))
}

/// Answers whatever is asked on a connection for which there is no room.
pub(crate) async fn overloaded() -> Response {
    let mut response = ApiError::new(Code::TooManyConnections, "too many connections are open").into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Turns a panic in a handler into an error for its client; the others never learn of it.
pub(crate) async fn contain(request: Request, next: Next) -> Response {
    AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
        // The panic hook has printed where and why; that is nobody else's business.
        ApiError::new(Code::Internal, "this request ran into a bug in the server").into_response()
    })
}
