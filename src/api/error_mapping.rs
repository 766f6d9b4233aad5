//! Mapping of errors of other layers to the error table, and responses that no handler gives.

use std::any::Any;
use std::error::Error;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use waymark_agent::AgentError;
use waymark_engine::EngineError;
use waymark_index::CompleteError;
use waymark_models::ModelError;
use waymark_models::grammar::GrammarError;

use super::error::{ApiError, Code};

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        if let AgentError::AnswerFormat(reason) | AgentError::Tool { reason, .. } = &error
            && let Some(code) = compiler_failure(reason)
        {
            return Self::new(code, reason.to_string());
        }
        let message = error.to_string();
        match error {
            AgentError::Conversation(_) => Self::invalid("messages", message),
            AgentError::TooLong { .. } | AgentError::TooManyBytes { .. } => {
                Self::new(Code::ContextLengthExceeded, message).with_param("messages")
            }
            AgentError::Mode { .. } | AgentError::TriplesNotShown { .. } => {
                Self::new(Code::UnsupportedParameter, message).with_param("rag.mode")
            }
            AgentError::NoIndex { .. } | AgentError::Speakers { .. } | AgentError::NoVisibleContext { .. } => {
                Self::new(Code::NotConfigured, message).with_param("model")
            }
            AgentError::NoGuide(_) => Self::new(Code::UnsupportedParameter, message).with_param("rag.guided"),
            AgentError::Option { field, reason } => Self::invalid(field, format!("`{field}`: {reason}")),
            AgentError::SearchOption { field, reason } => Self::invalid(&field, format!("`{field}`: {reason}")),
            AgentError::AnswerFormat(_) => Self::invalid("response_format", format!("`response_format`: {message}")),
            AgentError::Tool { .. } => Self::invalid("tools", format!("`tools`: {message}")),
            // A template may refuse an order of roles, which is the client's choice.
            AgentError::Text(ModelError::Template(_)) => Self::invalid("messages", message),
            // Conflicts between the sampling settings of the policy and those of the request.
            AgentError::Text(ModelError::Input(_)) => Self::new(Code::InvalidValue, message),
            AgentError::Text(_) | AgentError::Policy { .. } | AgentError::Panicked | AgentError::Disconnected => {
                Self::new(Code::Internal, message)
            }
            AgentError::Engine(error) => error.into(),
        }
    }
}

/// Returns the code for a compiler of grammars that failed. `None` if the grammar is at fault, which is the client's.
fn compiler_failure(error: &GrammarError) -> Option<Code> {
    match error {
        // The machine may have threads and memory again in a moment.
        GrammarError::NoThread(_) => Some(Code::QueueFull),
        GrammarError::Panicked => Some(Code::Internal),
        GrammarError::Schema(_) | GrammarError::Vocabulary(_) | GrammarError::Text(_) => None,
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::QueueFull { .. } => Self::new(Code::QueueFull, message),
            EngineError::TooLong { .. } => Self::new(Code::ContextLengthExceeded, message).with_param("messages"),
            EngineError::Request(_) => Self::new(Code::InvalidValue, message),
            // The rule is the client's: its schema, or the parameters of its tools.
            EngineError::Constraint(_) => Self::invalid("response_format", message),
            EngineError::Backend(_) | EngineError::Sample(_) => Self::new(Code::Internal, message),
            EngineError::Adapter(_) | EngineError::Weights(_) | EngineError::Unavailable(_) | EngineError::Dead(_) => {
                Self::new(Code::EngineUnavailable, message)
            }
        }
    }
}

/// Maps the failure of an encoder, named by `what`, to `unavailable` if its endpoint may answer later, and to an
/// internal error otherwise.
pub(super) fn encoder_error(what: &str, error: &(dyn Error + Send + Sync + 'static), unavailable: Code) -> ApiError {
    let message = format!("the {what} failed: {error}");
    let Some(CompleteError::Transient { after, .. }) = error.downcast_ref() else {
        return ApiError::new(Code::Internal, message);
    };
    let error = ApiError::new(unavailable, message);
    ApiError { retry_after: after.or(error.retry_after), ..error }
}

/// Responds to a path that no route has.
pub(crate) async fn no_route(request: Request) -> ApiError {
    ApiError::new(Code::NotFound, format!("there is no route {} {}", request.method(), request.uri().path()))
}

/// Responds to any request on a connection beyond the limit.
pub(crate) async fn overloaded() -> ApiError {
    ApiError::new(Code::TooManyConnections, "too many connections are open")
}

/// Closes the connection after this response.
pub(crate) async fn close_connection(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Responds to a request whose handler panicked; other requests are not affected.
pub(crate) fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::bug().into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_that_fails_is_not_the_clients_fault() {
        for (reason, code, retries) in [
            (GrammarError::NoThread("no memory".to_owned()), Code::QueueFull, true),
            (GrammarError::Panicked, Code::Internal, false),
            (GrammarError::Schema("not an object".to_owned()), Code::InvalidValue, false),
        ] {
            let of_tool = AgentError::Tool { name: "look".to_owned(), reason: reason.clone() };
            for error in [of_tool, AgentError::AnswerFormat(reason)] {
                let error = ApiError::from(error);
                assert_eq!((error.code, error.retry_after.is_some()), (code, retries), "{error}");
                assert_eq!(error.param.is_some(), code == Code::InvalidValue, "{error}");
            }
        }
    }
}
