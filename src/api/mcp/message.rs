//! What is sent, and what is sent back: JSON-RPC 2.0, one message at a time.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::tool::Called;
use crate::api::body;
use crate::api::error::{ApiError, Code, ErrorDetail};

/// What every message says of itself.
const JSONRPC: &str = "2.0";

/// The body is no JSON.
const PARSE: i32 = -32700;
/// It is JSON, and no message.
const REQUEST: i32 = -32600;
/// There is no such method.
const METHOD: i32 = -32601;
/// The method takes no such parameters.
const PARAMS: i32 = -32602;
/// Something broke that a client cannot mend.
const INTERNAL: i32 = -32603;

/// What names a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or an integer")]
pub(super) enum McpId {
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
}

/// A request, or a notification: one without an id, whose method begins with `notifications/`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct McpMessage {
    /// Always `2.0`.
    jsonrpc: String,
    /// Names a request; its answer has it too.
    pub(super) id: Option<McpId>,
    /// `initialize`, `ping`, `tools/list`, `tools/call`, or a notification.
    pub(super) method: String,
    /// What belongs to the method, by name.
    #[schema(value_type = Option<Object>)]
    pub(super) params: Option<Value>,
}

/// The answer to a request: a result or an error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct McpResponse {
    /// Always `2.0`.
    jsonrpc: &'static str,
    /// The request's id; null where none could be read.
    #[schema(required)]
    id: Option<McpId>,
    /// What the method gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    result: Option<Outcome>,
    /// Why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<McpError>,
}

/// Why there is no result.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct McpError {
    /// JSON-RPC's number for it: -32700, -32600, -32601, -32602 or -32603.
    code: i32,
    /// One sentence for a person.
    message: String,
    /// The same, as the other routes tell it.
    data: ErrorDetail,
}

/// What a method gives.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Outcome {
    /// An object made for the request.
    Told(Value),
    /// What a tool gave.
    Called(Called),
}

/// Why a message gets no result.
#[derive(Debug)]
pub(super) struct Fault {
    id: Option<McpId>,
    number: i32,
    error: ApiError,
}

impl McpMessage {
    /// Reads one message.
    ///
    /// # Errors
    /// What is no message, with the id that could be read all the same.
    pub(super) fn read(bytes: &[u8]) -> Result<McpMessage, Fault> {
        let value = body::json(bytes).map_err(|error| Fault::new(PARSE, error))?;
        if value.is_array() {
            return Err(Fault::request(ApiError::new(Code::InvalidValue, "batches are not taken: send one message")));
        }
        if !value.is_object() {
            return Err(Fault::request(ApiError::new(Code::InvalidValue, "a message must be a JSON object")));
        }
        let id = value.get("id").and_then(|id| McpId::deserialize(id).ok());
        let shaped = body::shaped::<McpMessage>(value).and_then(McpMessage::checked);
        shaped.map_err(|error| Fault::request(error).to(id))
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

/// Reads the parameters of a method. Those that are left out are an empty object.
pub(super) fn params<T: DeserializeOwned>(params: Option<Value>) -> Result<T, Fault> {
    named("params", params).map_err(Fault::params)
}

/// Reads things that are given by name. Serde would take a list for an object whose fields come in their order.
pub(super) fn named<T: DeserializeOwned>(what: &str, given: Option<Value>) -> Result<T, ApiError> {
    match given.unwrap_or_else(|| json!({})) {
        object @ Value::Object(_) => body::shaped(object),
        _ => Err(ApiError::invalid(what, format!("`{what}` must be a JSON object"))),
    }
}

impl Outcome {
    /// The answer to the request `id`.
    pub(super) fn to(self, id: McpId) -> Response {
        let failed = match &self {
            Outcome::Called(called) => called.failed,
            Outcome::Told(_) => None,
        };
        let body = McpResponse { jsonrpc: JSONRPC, id: Some(id), result: Some(self), error: None };
        let mut response = axum::Json(body).into_response();
        if let Some(code) = failed {
            response.extensions_mut().insert(code);
        }
        response
    }
}

impl Fault {
    fn new(number: i32, error: ApiError) -> Fault {
        Fault { id: None, number, error }
    }

    /// What is no message, or none that is understood here.
    pub(super) fn request(error: ApiError) -> Fault {
        Fault::new(REQUEST, error)
    }

    /// A method that there is not.
    pub(super) fn method(name: &str) -> Fault {
        let known = "`initialize`, `ping`, `tools/list` and `tools/call`";
        Fault::new(METHOD, ApiError::invalid("method", format!("`method`: there is no `{name}` here, only {known}")))
    }

    /// Parameters that the method does not take.
    pub(super) fn params(error: ApiError) -> Fault {
        Fault::new(PARAMS, error)
    }

    /// Something that a client cannot mend.
    pub(super) fn internal(error: ApiError) -> Fault {
        Fault::new(INTERNAL, error)
    }

    /// The same, about the request `id`.
    pub(super) fn to(self, id: Option<McpId>) -> Fault {
        Fault { id, ..self }
    }
}

impl IntoResponse for Fault {
    /// 400 for what is no message; a message is answered with 200, whatever the answer.
    fn into_response(self) -> Response {
        let status = if matches!(self.number, PARSE | REQUEST) { StatusCode::BAD_REQUEST } else { StatusCode::OK };
        let detail = self.error.body().error;
        let error = McpError { code: self.number, message: detail.message.clone(), data: detail };
        let body = McpResponse { jsonrpc: JSONRPC, id: self.id, result: None, error: Some(error) };
        let mut response = (status, axum::Json(body)).into_response();
        // For the log.
        response.extensions_mut().insert(self.error.code);
        response
    }
}
