//! Requests and responses in JSON-RPC 2.0, one message at a time.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::tool::ToolResult;
use crate::api::body;
use crate::api::error::{ApiError, Code, ErrorDetail};

/// Version in every message.
const JSONRPC: &str = "2.0";

/// JSON-RPC error: the body is not JSON.
const PARSE: i32 = -32700;
/// JSON-RPC error: the JSON is not a request.
const REQUEST: i32 = -32600;
/// JSON-RPC error: unknown method.
const METHOD: i32 = -32601;
/// JSON-RPC error: invalid parameters.
const PARAMS: i32 = -32602;
/// JSON-RPC error: the server has a problem that a client cannot solve.
const INTERNAL: i32 = -32603;

/// ID of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or an integer")]
pub(super) enum McpId {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// Request or notification. A notification has no ID, and its method begins with `notifications/`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct McpMessage {
    /// Always `2.0`.
    jsonrpc: String,
    /// ID of the request, repeated in its response.
    pub(super) id: Option<McpId>,
    /// `initialize`, `ping`, `tools/list`, `tools/call`, or a notification.
    pub(super) method: String,
    /// Parameters of the method, by name.
    #[schema(value_type = Option<Object>)]
    pub(super) params: Option<Value>,
}

/// Response to a request: a result or an error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct McpResponse {
    /// Always `2.0`.
    jsonrpc: &'static str,
    /// ID of the request. Null if it could not be read.
    #[schema(required)]
    id: Option<McpId>,
    /// Result of the method.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    result: Option<MethodResult>,
    /// Error, if there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<McpError>,
}

/// Error in a response.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct McpError {
    /// JSON-RPC error code: -32700, -32600, -32601, -32602 or -32603.
    code: i32,
    /// One sentence for a person.
    message: String,
    /// Same error in the format of the other routes.
    data: ErrorDetail,
}

/// Result of a method.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum MethodResult {
    /// JSON object built for the request.
    Object(Value),
    /// Result of a tool call.
    Tool(ToolResult),
}

/// Error response to a message.
#[derive(Debug)]
pub(super) struct McpFault {
    id: Option<McpId>,
    number: i32,
    error: ApiError,
}

impl McpMessage {
    /// Parses one message.
    ///
    /// # Errors
    /// If the body is not a message. The error holds the message's ID if one could be read.
    pub(super) fn read(bytes: &[u8]) -> Result<McpMessage, McpFault> {
        let value = body::json(bytes).map_err(|error| McpFault::new(PARSE, error))?;
        // Revision 2025-03-26 has batches, and 2025-06-18 removed them.
        if value.is_array() {
            return Err(McpFault::request(ApiError::new(
                Code::InvalidValue,
                "batches are not supported: send one message at a time",
            )));
        }
        if !value.is_object() {
            return Err(McpFault::request(ApiError::new(Code::InvalidValue, "a message must be a JSON object")));
        }
        // Read separately, so the error for an otherwise malformed message still names its request.
        let id = value.get("id").and_then(|id| McpId::deserialize(id).ok());
        let shaped = body::shaped::<McpMessage>(value).and_then(McpMessage::checked);
        shaped.map_err(|error| McpFault::request(error).to(id))
    }

    fn checked(self) -> Result<McpMessage, ApiError> {
        if self.jsonrpc != JSONRPC {
            return Err(ApiError::invalid("jsonrpc", format!("`jsonrpc` must be `{JSONRPC}`")));
        }
        if self.id.is_none() && !self.method.starts_with("notifications/") {
            return Err(ApiError::missing("id"));
        }
        Ok(self)
    }
}

/// Deserializes the parameters of a method. Missing parameters count as an empty object.
pub(super) fn params<T: DeserializeOwned>(params: Option<Value>) -> Result<T, McpFault> {
    named("params", params).map_err(McpFault::params)
}

/// Deserializes a JSON object. Lists are refused, since serde would map their entries to the fields in order.
pub(super) fn named<T: DeserializeOwned>(what: &str, given: Option<Value>) -> Result<T, ApiError> {
    match given.unwrap_or_else(|| json!({})) {
        object @ Value::Object(_) => body::shaped(object),
        _ => Err(ApiError::invalid(what, format!("`{what}` must be a JSON object"))),
    }
}

impl MethodResult {
    /// Builds the response to the request `id`.
    pub(super) fn to(self, id: McpId) -> Response {
        let failed = match &self {
            MethodResult::Tool(called) => called.failed,
            MethodResult::Object(_) => None,
        };
        let body = McpResponse { jsonrpc: JSONRPC, id: Some(id), result: Some(self), error: None };
        let mut response = axum::Json(body).into_response();
        // Read by the request log, as the status is 200 even for a tool that failed.
        if let Some(code) = failed {
            response.extensions_mut().insert(code);
        }
        response
    }
}

impl McpFault {
    fn new(number: i32, error: ApiError) -> McpFault {
        McpFault { id: None, number, error }
    }

    /// Creates the error for a message that is malformed or not supported.
    pub(super) fn request(error: ApiError) -> McpFault {
        McpFault::new(REQUEST, error)
    }

    /// Creates the error for an unknown method.
    pub(super) fn method(name: &str) -> McpFault {
        let known = "`initialize`, `ping`, `tools/list`, `tools/call`";
        McpFault::new(
            METHOD,
            ApiError::invalid("method", format!("`method`: unknown method `{name}`: expected one of {known}")),
        )
    }

    /// Creates the error for parameters that the method does not accept.
    pub(super) fn params(error: ApiError) -> McpFault {
        McpFault::new(PARAMS, error)
    }

    /// Creates the error for a problem that a client cannot solve.
    pub(super) fn internal(error: ApiError) -> McpFault {
        McpFault::new(INTERNAL, error)
    }

    /// Sets the ID of the request at fault.
    pub(super) fn to(self, id: Option<McpId>) -> McpFault {
        McpFault { id, ..self }
    }
}

impl IntoResponse for McpFault {
    /// Status 400 if the body is not a valid message; every valid message is answered with 200.
    fn into_response(self) -> Response {
        let status = if matches!(self.number, PARSE | REQUEST) { StatusCode::BAD_REQUEST } else { StatusCode::OK };
        let detail = self.error.body().error;
        let error = McpError { code: self.number, message: detail.message.clone(), data: detail };
        let body = McpResponse { jsonrpc: JSONRPC, id: self.id, result: None, error: Some(error) };
        let mut response = (status, axum::Json(body)).into_response();
        // Read by the request log.
        response.extensions_mut().insert(self.error.code);
        response
    }
}
