//! The one table of errors a client can get: identifier, status, type, code, and whether a retry can help.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

/// Tells OpenAI's SDKs not to repeat a request that would fail again the same way.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// `Retry-After` to the millisecond, for OpenAI's SDKs.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// How a key is to be shown.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"waymark\"");

macro_rules! error_table {
    ($($(#[$doc:meta])* $ident:ident: $status:ident, $kind:literal, $code:literal, retry: $retry:literal;)*) => {
        /// What went wrong, as the wire names it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $ident,)*
        }

        impl Code {
            /// Every code, for documents and tests.
            pub const ALL: &'static [Code] = &[$(Code::$ident,)*];

            /// The HTTP status it is sent with.
            pub fn status(self) -> StatusCode {
                match self { $(Code::$ident => StatusCode::$status,)* }
            }

            /// The `type` of the error object.
            pub fn kind(self) -> &'static str {
                match self { $(Code::$ident => $kind,)* }
            }

            /// The `code` of the error object.
            pub fn name(self) -> &'static str {
                match self { $(Code::$ident => $code,)* }
            }

            /// Whether sending the same request again can succeed.
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
    /// A field nobody knows.
    UnknownParameter: BAD_REQUEST, "invalid_request_error", "unknown_parameter", retry: false;
    /// A field of the OpenAI interface that this server does not implement.
    UnsupportedParameter: BAD_REQUEST, "invalid_request_error", "unsupported_parameter", retry: false;
    /// The prompt does not fit the model's context.
    ContextLengthExceeded: BAD_REQUEST, "invalid_request_error", "context_length_exceeded", retry: false;
    /// The server runs without what the request needs: an index, an embedder.
    NotConfigured: BAD_REQUEST, "invalid_request_error", "not_configured", retry: false;
    /// The request shows no key, or one that is not known.
    InvalidApiKey: UNAUTHORIZED, "invalid_request_error", "invalid_api_key", retry: false;
    /// The key may not do this.
    InsufficientScope: FORBIDDEN, "permission_error", "insufficient_scope", retry: false;
    /// A page of an origin that may not use the server asks.
    OriginNotAllowed: FORBIDDEN, "permission_error", "origin_not_allowed", retry: false;
    /// The key has asked as often as it may.
    RateLimited: TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", retry: true;
    /// The key has as many requests running as it may.
    ConcurrencyLimited: TOO_MANY_REQUESTS, "rate_limit_error", "concurrency_limit_exceeded", retry: true;
    /// No policy has this name.
    ModelNotFound: NOT_FOUND, "invalid_request_error", "model_not_found", retry: false;
    /// No document of the index has this id.
    DocumentNotFound: NOT_FOUND, "invalid_request_error", "document_not_found", retry: false;
    /// No change that is known has this id.
    CommitNotFound: NOT_FOUND, "invalid_request_error", "commit_not_found", retry: false;
    /// No response that is kept has this id.
    ResponseNotFound: NOT_FOUND, "invalid_request_error", "response_not_found", retry: false;
    /// The index that is searched has another name.
    VectorStoreNotFound: NOT_FOUND, "invalid_request_error", "vector_store_not_found", retry: false;
    /// No trace is kept under this id.
    TraceNotFound: NOT_FOUND, "invalid_request_error", "trace_not_found", retry: false;
    /// A response that is made in the background is larger than what may be kept.
    ResponseTooLarge: BAD_REQUEST, "invalid_request_error", "response_too_large", retry: false;
    /// The events that a client missed are not held any more.
    EventsGone: GONE, "invalid_request_error", "events_gone", retry: false;
    /// The policy or the adapter that a trace was made with is gone.
    PolicyChanged: CONFLICT, "invalid_request_error", "policy_changed", retry: false;
    /// The server's policies do not change while it runs.
    FixedPolicies: FORBIDDEN, "invalid_request_error", "fixed_policies", retry: false;
    /// The server only reads its index.
    ReadOnlyIndex: FORBIDDEN, "invalid_request_error", "read_only_index", retry: false;
    /// Another process is writing to the index.
    IndexLocked: CONFLICT, "invalid_request_error", "index_locked", retry: true;
    /// No route has this path.
    NotFound: NOT_FOUND, "invalid_request_error", "not_found", retry: false;
    /// The route exists, the method does not.
    MethodNotAllowed: METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed", retry: false;
    /// The client takes no form that the answer has.
    NotAcceptable: NOT_ACCEPTABLE, "invalid_request_error", "not_acceptable", retry: false;
    /// The body took too long to arrive.
    RequestTimeout: REQUEST_TIMEOUT, "invalid_request_error", "request_timeout", retry: true;
    /// The body is larger than the limit.
    RequestTooLarge: PAYLOAD_TOO_LARGE, "invalid_request_error", "request_too_large", retry: false;
    /// The body is not declared as JSON.
    UnsupportedMediaType: UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", "unsupported_media_type", retry: false;
    /// Too many requests wait already.
    QueueFull: SERVICE_UNAVAILABLE, "server_error", "queue_full", retry: true;
    /// Too many connections are open already.
    TooManyConnections: SERVICE_UNAVAILABLE, "server_error", "too_many_connections", retry: true;
    /// The server is shutting down.
    Draining: SERVICE_UNAVAILABLE, "server_error", "draining", retry: true;
    /// The engine thread has died.
    EngineUnavailable: SERVICE_UNAVAILABLE, "server_error", "engine_unavailable", retry: true;
    /// A search did not finish before its deadline.
    SearchTimeout: GATEWAY_TIMEOUT, "server_error", "search_timeout", retry: true;
    /// A search failed.
    SearchFailed: INTERNAL_SERVER_ERROR, "server_error", "search_failed", retry: true;
    /// The index could not be changed, and stands as it was.
    CommitFailed: INTERNAL_SERVER_ERROR, "server_error", "commit_failed", retry: true;
    /// Something broke that a client cannot mend.
    Internal: INTERNAL_SERVER_ERROR, "server_error", "internal_error", retry: false;
}

/// An error on its way to a client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The row of the table.
    pub code: Code,
    /// One sentence for a person, lower case.
    pub message: String,
    /// The request field it is about, as a path (`messages[0].role`).
    pub param: Option<String>,
    /// When to come back, for codes that a retry helps.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// An error with a message and nothing else.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let busy = matches!(code.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let retry_after = busy.then_some(Duration::from_secs(1));
        Self { code, message: message.into(), param: None, retry_after }
    }

    /// The same error, about one field of the request.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// A field whose value is refused.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::new(Code::InvalidValue, message).with_param(param)
    }

    /// A field that OpenAI's interface has and this server does not.
    pub fn unimplemented(param: &str) -> Self {
        Self::new(Code::UnsupportedParameter, format!("`{param}` is not supported here")).with_param(param)
    }

    /// What in a field OpenAI's interface has and this server does not; `what` ends in `is` or `are`.
    pub fn unsupported(param: &str, what: &str) -> Self {
        Self::new(Code::UnsupportedParameter, format!("`{param}`: {what} not supported here")).with_param(param)
    }

    /// A field that is required and was not sent.
    pub fn missing(param: &str) -> Self {
        Self::new(Code::MissingParameter, format!("`{param}` is required")).with_param(param)
    }

    /// What needs an index, where there is none.
    pub(super) fn no_index() -> Self {
        Self::new(Code::NotConfigured, "this server has no index: start it with `--index`")
    }

    /// A field that nobody knows.
    pub fn unknown(param: &str) -> Self {
        Self::new(Code::UnknownParameter, format!("unknown parameter `{param}`")).with_param(param)
    }

    /// The same error, where the request calls the field `from` by another name.
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() != Some(from) {
            return self;
        }
        self.message = self.message.replacen(&format!("`{from}`"), &format!("`{to}`"), 1);
        self.with_param(to)
    }

    /// The object that goes over the wire.
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
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_millis().div_ceil(1000).max(1) as u64));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(after.as_millis() as u64));
        }
        if self.code.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, CHALLENGE);
        }
        // Of the statuses that the SDKs repeat by themselves.
        let repeated = self.code.status().is_server_error() || self.code.status() == StatusCode::CONFLICT;
        if repeated && !self.code.retry() {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response.extensions_mut().insert(self.code);
        response
    }
}

/// The errors of every route that computes, for the document.
#[derive(Debug, IntoResponses)]
#[expect(dead_code, reason = "only its shape is used")]
pub(super) enum Refusals {
    /// The request is refused, and why.
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
    /// The body is not declared as JSON.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// Something broke on the way to the answer.
    #[response(status = 500)]
    Broken(ErrorBody),
    /// The queue is full, the engine is dead, or the server is shutting down.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

/// Every error response: one object with four keys, all of them always there.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// One sentence for a person.
    pub message: String,
    /// The class of the error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The request field it is about, if it is about one.
    #[schema(required)]
    pub param: Option<String>,
    /// The error's name, such as `context_length_exceeded`.
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
