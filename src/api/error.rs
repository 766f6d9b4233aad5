//! Table of all errors that a client can get: identifier, status, type, code, and whether a retry can help.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

/// Header that tells OpenAI's SDKs not to retry a request that would fail again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// `Retry-After` in milliseconds, read by OpenAI's SDKs.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Authentication scheme named in 401 responses.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"waymark\"");

macro_rules! error_table {
    ($($(#[$doc:meta])* $ident:ident: $status:ident, $kind:literal, $code:literal, retry: $retry:literal;)*) => {
        /// Error code, as sent to clients.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $ident,)*
        }

        impl Code {
            /// All codes, for documents and tests.
            pub const ALL: &'static [Code] = &[$(Code::$ident,)*];

            /// Returns the HTTP status of the error.
            pub fn status(self) -> StatusCode {
                match self { $(Code::$ident => StatusCode::$status,)* }
            }

            /// Returns the `type` of the error object.
            pub fn kind(self) -> &'static str {
                match self { $(Code::$ident => $kind,)* }
            }

            /// Returns the `code` of the error object.
            pub fn name(self) -> &'static str {
                match self { $(Code::$ident => $code,)* }
            }

            /// Returns `true` if retrying the same request can succeed.
            pub fn retry(self) -> bool {
                match self { $(Code::$ident => $retry,)* }
            }
        }
    };
}

error_table! {
    /// The body is not JSON, or not UTF-8.
    InvalidJson: BAD_REQUEST, "invalid_request_error", "invalid_json", retry: false;
    /// A field has the wrong type or a value out of range.
    InvalidValue: BAD_REQUEST, "invalid_request_error", "invalid_value", retry: false;
    /// A required field is missing.
    MissingParameter: BAD_REQUEST, "invalid_request_error", "missing_required_parameter", retry: false;
    /// The request has an unknown field.
    UnknownParameter: BAD_REQUEST, "invalid_request_error", "unknown_parameter", retry: false;
    /// The request uses a field of the OpenAI interface that this server does not implement.
    UnsupportedParameter: BAD_REQUEST, "invalid_request_error", "unsupported_parameter", retry: false;
    /// The prompt does not fit the model's context.
    ContextLengthExceeded: BAD_REQUEST, "invalid_request_error", "context_length_exceeded", retry: false;
    /// The server lacks something the request needs: an index, an embedder.
    NotConfigured: BAD_REQUEST, "invalid_request_error", "not_configured", retry: false;
    /// The request has no API key, or an unknown one.
    InvalidApiKey: UNAUTHORIZED, "invalid_request_error", "invalid_api_key", retry: false;
    /// The key lacks the scope that the route requires, or may not use the index.
    InsufficientScope: FORBIDDEN, "permission_error", "insufficient_scope", retry: false;
    /// The request comes from a web page of an origin that is not allowed.
    OriginNotAllowed: FORBIDDEN, "permission_error", "origin_not_allowed", retry: false;
    /// The request is for a host that the server does not answer to.
    HostNotAllowed: FORBIDDEN, "permission_error", "host_not_allowed", retry: false;
    /// A header is missing, repeated, or contradicts another one.
    InvalidHeader: BAD_REQUEST, "invalid_request_error", "invalid_header", retry: false;
    /// The key has exceeded its requests per minute.
    RateLimited: TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", retry: true;
    /// The key has its maximum number of requests running.
    ConcurrencyLimited: TOO_MANY_REQUESTS, "rate_limit_error", "concurrency_limit_exceeded", retry: true;
    /// There is no policy with this name.
    ModelNotFound: NOT_FOUND, "invalid_request_error", "model_not_found", retry: false;
    /// There is no document with this ID.
    DocumentNotFound: NOT_FOUND, "invalid_request_error", "document_not_found", retry: false;
    /// The graph of the index has no such node.
    NodeNotFound: NOT_FOUND, "invalid_request_error", "node_not_found", retry: false;
    /// There is no change with this ID.
    CommitNotFound: NOT_FOUND, "invalid_request_error", "commit_not_found", retry: false;
    /// There is no stored response with this ID.
    ResponseNotFound: NOT_FOUND, "invalid_request_error", "response_not_found", retry: false;
    /// The server's state has no API key with this name.
    KeyNotFound: NOT_FOUND, "invalid_request_error", "key_not_found", retry: false;
    /// There is no conversation or conversation item with this ID.
    ConversationNotFound: NOT_FOUND, "invalid_request_error", "conversation_not_found", retry: false;
    /// There is no vector store with this ID.
    VectorStoreNotFound: NOT_FOUND, "invalid_request_error", "vector_store_not_found", retry: false;
    /// There is no file with this ID.
    FileNotFound: NOT_FOUND, "invalid_request_error", "file_not_found", retry: false;
    /// The vector store has no batch of files with this ID.
    FileBatchNotFound: NOT_FOUND, "invalid_request_error", "file_batch_not_found", retry: false;
    /// The vector store is an index that the server was started with.
    FixedVectorStore: FORBIDDEN, "invalid_request_error", "fixed_vector_store", retry: false;
    /// There is no trace with this ID.
    TraceNotFound: NOT_FOUND, "invalid_request_error", "trace_not_found", retry: false;
    /// A background response exceeds the size limit.
    ResponseTooLarge: BAD_REQUEST, "invalid_request_error", "response_too_large", retry: false;
    /// Events that the client missed are no longer buffered.
    EventsGone: GONE, "invalid_request_error", "events_gone", retry: false;
    /// The policy or the adapter of a trace has been replaced or unloaded.
    PolicyChanged: CONFLICT, "invalid_request_error", "policy_changed", retry: false;
    /// The server's policies cannot be changed while it runs.
    FixedPolicies: FORBIDDEN, "invalid_request_error", "fixed_policies", retry: false;
    /// The server's index is read-only.
    ReadOnlyIndex: FORBIDDEN, "invalid_request_error", "read_only_index", retry: false;
    /// Another process is writing to the index.
    IndexLocked: CONFLICT, "invalid_request_error", "index_locked", retry: true;
    /// No such snapshot of the index is kept.
    SnapshotNotFound: NOT_FOUND, "invalid_request_error", "snapshot_not_found", retry: false;
    /// There is no route with this path.
    NotFound: NOT_FOUND, "invalid_request_error", "not_found", retry: false;
    /// The route does not support this method.
    MethodNotAllowed: METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed", retry: false;
    /// The client accepts no media type that the route can send.
    NotAcceptable: NOT_ACCEPTABLE, "invalid_request_error", "not_acceptable", retry: false;
    /// The body took too long to arrive.
    RequestTimeout: REQUEST_TIMEOUT, "invalid_request_error", "request_timeout", retry: true;
    /// The body is larger than the limit.
    RequestTooLarge: PAYLOAD_TOO_LARGE, "invalid_request_error", "request_too_large", retry: false;
    /// The body is not declared as JSON, or is compressed.
    UnsupportedMediaType: UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", "unsupported_media_type", retry: false;
    /// Too many requests are waiting already.
    QueueFull: SERVICE_UNAVAILABLE, "server_error", "queue_full", retry: true;
    /// Too many connections are open already.
    TooManyConnections: SERVICE_UNAVAILABLE, "server_error", "too_many_connections", retry: true;
    /// The server is shutting down.
    Draining: SERVICE_UNAVAILABLE, "server_error", "draining", retry: true;
    /// The engine has stopped, an adapter is not loaded, or no remote engine takes the request.
    EngineUnavailable: SERVICE_UNAVAILABLE, "server_error", "engine_unavailable", retry: true;
    /// The endpoint of the embedder does not answer.
    EmbedderUnavailable: SERVICE_UNAVAILABLE, "server_error", "embedder_unavailable", retry: true;
    /// The endpoint of the reranker does not answer.
    RerankerUnavailable: SERVICE_UNAVAILABLE, "server_error", "reranker_unavailable", retry: true;
    /// A file of the index is damaged.
    IndexDamaged: SERVICE_UNAVAILABLE, "server_error", "index_damaged", retry: true;
    /// A search did not finish before its deadline.
    SearchTimeout: GATEWAY_TIMEOUT, "server_error", "search_timeout", retry: true;
    /// A search failed.
    SearchFailed: INTERNAL_SERVER_ERROR, "server_error", "search_failed", retry: true;
    /// The database or directory of stored records cannot be read or written.
    StateUnavailable: SERVICE_UNAVAILABLE, "server_error", "state_unavailable", retry: true;
    /// The index could not be changed; it is still in its previous state.
    CommitFailed: INTERNAL_SERVER_ERROR, "server_error", "commit_failed", retry: true;
    /// The server has a problem that a client cannot solve.
    Internal: INTERNAL_SERVER_ERROR, "server_error", "internal_error", retry: false;
}

/// Error to be sent to a client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Error code.
    pub code: Code,
    /// One sentence for a person, in lower case.
    pub message: String,
    /// Path of the request field at fault (`messages[0].role`).
    pub param: Option<String>,
    /// Time after which to retry, for errors that a retry can solve.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// Creates the error of a request whose handler or task panicked. The panic hook has already printed the message and
    /// the location, which clients should not see.
    pub(crate) fn bug() -> Self {
        Self::new(Code::Internal, "this request ran into a bug in the server")
    }

    /// Creates an error with a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        // Overload is expected to pass, so clients are told to retry soon.
        let busy = matches!(code.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let retry_after = busy.then_some(Duration::from_secs(1));
        Self { code, message: message.into(), param: None, retry_after }
    }

    /// Sets the request field at fault.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Creates an error for a field with an invalid value.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::new(Code::InvalidValue, message).with_param(param)
    }

    /// Creates an error for a field of OpenAI's interface that this server does not implement.
    pub fn unimplemented(param: &str) -> Self {
        Self::new(Code::UnsupportedParameter, format!("`{param}` is not supported here")).with_param(param)
    }

    /// Creates an error for a part of a field that this server does not implement. `what` ends in `is` or `are`.
    pub fn unsupported(param: &str, what: &str) -> Self {
        Self::new(Code::UnsupportedParameter, format!("`{param}`: {what} not supported here")).with_param(param)
    }

    /// Creates an error for a missing required field.
    pub fn missing(param: &str) -> Self {
        Self::new(Code::MissingParameter, format!("`{param}` is required")).with_param(param)
    }

    /// Creates an error for a request that needs an index, on a server without one.
    pub(super) fn no_index() -> Self {
        Self::new(Code::NotConfigured, "this server has no index: start it with `--index`")
    }

    /// Creates an error for an unknown field.
    pub fn unknown(param: &str) -> Self {
        Self::new(Code::UnknownParameter, format!("unknown parameter `{param}`")).with_param(param)
    }

    /// Renames the field at fault from `from` to `to`, for requests that call it differently.
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() != Some(from) {
            return self;
        }
        self.message = self.message.replacen(&format!("`{from}`"), &format!("`{to}`"), 1);
        self.with_param(to)
    }

    /// Moves the field at fault, if there is one, into the field `at` of the request.
    pub(super) fn nested(self, at: &str) -> Self {
        match self.param.clone() {
            Some(param) => self.renamed(&param, &format!("{at}.{param}")),
            None => self,
        }
    }

    /// Returns the error object sent to clients.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: ErrorDetail {
                message: self.message.clone(),
                kind: self.code.kind(),
                param: self.param.clone(),
                code: Some(self.code.name()),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            // `Retry-After` has whole seconds; rounding up keeps clients from retrying too early.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_millis().div_ceil(1000).max(1) as u64));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(after.as_millis() as u64));
        }
        if self.code.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, CHALLENGE);
        }
        // SDKs retry these statuses by themselves, so they are told when a retry cannot help.
        let repeated = self.code.status().is_server_error() || self.code.status() == StatusCode::CONFLICT;
        if repeated && !self.code.retry() {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        // Read by the request log.
        response.extensions_mut().insert(self.code);
        response
    }
}

/// Error responses of every route that computes, for the OpenAPI document.
#[derive(Debug, IntoResponses)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum Refusals {
    /// The request is refused; the error names the reason.
    #[response(status = 400)]
    BadRequest(ErrorBody),
    /// No such model.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// The body took too long to arrive.
    #[response(status = 408)]
    Slow(ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body is not declared as JSON, or is compressed.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The server failed while working on the request.
    #[response(status = 500)]
    Broken(ErrorBody),
    /// The queue is full, the engine or an endpoint is away, or the server is shutting down.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

/// Error response: one object whose four keys are always present.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// Description of an error.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// One sentence for a person.
    pub message: String,
    /// The class of the error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Path of the request field at fault, if there is one.
    #[schema(required)]
    pub param: Option<String>,
    /// Code of the error, such as `context_length_exceeded`.
    #[schema(required)]
    pub code: Option<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_types_fit_their_status() {
        let names: std::collections::HashSet<_> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(code.kind() == "server_error", code.status().is_server_error(), "{code:?}");
            assert!(code.status().is_server_error() || code.status().is_client_error());
        }
    }

    #[test]
    fn the_object_always_has_its_four_keys() {
        let json =
            serde_json::to_string(&ApiError::new(Code::QueueFull, "the queue is full").body()).unwrap_or_default();
        assert_eq!(
            json,
            r#"{"error":{"message":"the queue is full","type":"server_error","param":null,"code":"queue_full"}}"#
        );
    }
}
