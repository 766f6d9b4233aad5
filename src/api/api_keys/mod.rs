//! `/v1/keys`: API keys in the server's state, which all servers over the same state accept.

mod stored_keys;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::blocking::run_to_end;
use super::body::{JsonBody, WireRequest, within};
use super::error::{ApiError, Code, ErrorBody, Refusals};
use super::path_param::PathParam;
use super::state::AppState;
use crate::keys::{IndexScope, KeyEntry, KeyId, KeyLimits, KeySource, RequestPriority, Scope, Secret};

pub(crate) use stored_keys::StoredKeys;

/// Key to create. `null` is the same as leaving a field out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKeyRequest {
    /// Name of the key in logs: 1 to 64 letters, digits and `._-@`.
    pub name: String,
    /// Scopes of the key; defaults to `infer`.
    pub scopes: Option<Vec<Scope>>,
    /// Maximum number of requests per minute. Unlimited by default.
    #[schema(minimum = 1)]
    pub requests_per_minute: Option<u32>,
    /// Maximum number of tokens per minute, of prompts and answers together. Unlimited by default.
    #[schema(minimum = 1)]
    pub tokens_per_minute: Option<u32>,
    /// Maximum number of concurrent requests. Unlimited by default.
    #[schema(minimum = 1)]
    pub concurrent: Option<u32>,
    /// Priority of the key's requests relative to those of other keys; defaults to `normal`.
    pub priority: Option<RequestPriority>,
    /// If `true`, the key shares no cached prefixes and no cached vectors of search queries with other keys.
    pub private_cache: Option<bool>,
    /// Names of up to 64 indexes that the key may use, and no others. All by default. Excludes the scope `admin`.
    pub indexes: Option<Vec<String>>,
}

impl WireRequest for CreateKeyRequest {}

/// API key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub struct ApiKeyObject {
    /// Always `api_key`.
    pub object: &'static str,
    /// Name of the key.
    pub id: String,
    /// Place that the key comes from. Only keys in the state can be revoked here.
    pub source: KeySource,
    /// Scopes of the key.
    pub scopes: Vec<Scope>,
    /// Maximum number of requests per minute. Null without a limit.
    #[schema(required)]
    pub requests_per_minute: Option<u32>,
    /// Maximum number of tokens per minute. Null without a limit.
    #[schema(required)]
    pub tokens_per_minute: Option<u32>,
    /// Maximum number of concurrent requests. Null without a limit.
    #[schema(required)]
    pub concurrent: Option<u32>,
    /// Priority of the key's requests.
    pub priority: RequestPriority,
    /// If `true`, the key shares no cached prefixes and no cached vectors of search queries with other keys.
    pub private_cache: bool,
    /// Names of the indexes that the key may use. Null for all.
    #[schema(required)]
    pub indexes: Option<Vec<String>>,
}

/// New API key.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedKey {
    /// The key itself, which is shown only once.
    pub key: String,
    /// Properties of the key.
    #[serde(flatten)]
    pub properties: ApiKeyObject,
}

/// List of all API keys.
#[derive(Debug, Serialize, ToSchema)]
pub struct ApiKeyList {
    /// Always `list`.
    pub object: &'static str,
    /// Keys: those of the file, of the flag, and of the state.
    pub data: Vec<ApiKeyObject>,
}

/// Revoked API key.
#[derive(Debug, Serialize, ToSchema)]
pub struct RevokedKey {
    /// Name of the key.
    pub id: String,
    /// Always `api_key.deleted`.
    pub object: &'static str,
    /// Always `true`.
    pub deleted: bool,
}

impl ApiKeyObject {
    fn new(source: KeySource, entry: &KeyEntry) -> ApiKeyObject {
        let KeyLimits { requests_per_minute, tokens_per_minute, concurrent } = entry.limits;
        ApiKeyObject {
            object: "api_key",
            id: entry.id.to_string(),
            source,
            scopes: entry.scopes.clone(),
            requests_per_minute,
            tokens_per_minute,
            concurrent,
            priority: entry.priority,
            private_cache: entry.private_cache,
            indexes: entry.indexes.names().map(<[String]>::to_vec),
        }
    }
}

/// Lists the API keys.
#[utoipa::path(get, path = "/v1/keys", operation_id = "listKeys", tag = "operation",
    responses((status = 200, description = "the keys", body = ApiKeyList)))]
pub(crate) async fn list(State(state): State<AppState>) -> axum::Json<ApiKeyList> {
    let data = state.keys.list().iter().map(|(source, entry)| ApiKeyObject::new(*source, entry)).collect();
    axum::Json(ApiKeyList { object: "list", data })
}

/// Creates an API key in the server's state.
///
/// Other servers over the same state accept the key within five seconds. Only its hash is stored.
#[utoipa::path(post, path = "/v1/keys", operation_id = "createKey", tag = "operation", request_body = CreateKeyRequest,
    responses((status = 200, description = "the key", body = CreatedKey), Refusals))]
pub(crate) async fn create(
    State(state): State<AppState>,
    JsonBody(request): JsonBody<CreateKeyRequest>,
) -> Result<axum::Json<CreatedKey>, ApiError> {
    state.stored_keys.check()?;
    let secret = Secret::generate();
    let entry = request.entry(&secret)?;
    let properties = ApiKeyObject::new(KeySource::State, &entry);
    let keys = state.stored_keys.clone();
    run_to_end(async move { keys.create(entry).await }).await?;
    tracing::info!(key = properties.id, "API key created");
    Ok(axum::Json(CreatedKey { key: secret.reveal().to_owned(), properties }))
}

/// Revokes an API key of the server's state.
///
/// Other servers over the same state refuse the key within five seconds. Running requests continue to their end.
#[utoipa::path(delete, path = "/v1/keys/{name}", operation_id = "revokeKey", tag = "operation",
    params(("name" = String, Path, description = "name of the key")),
    responses(
        (status = 200, description = "the key is revoked", body = RevokedKey),
        (status = 400, description = "the server keeps no keys in its state", body = ErrorBody),
        (status = 404, description = "the state has no such key", body = ErrorBody),
        (status = 503, description = "the server's state cannot be written", body = ErrorBody),
    ))]
pub(crate) async fn revoke(
    State(state): State<AppState>,
    PathParam(id): PathParam<String>,
) -> Result<axum::Json<RevokedKey>, ApiError> {
    state.stored_keys.check()?;
    let keys = state.stored_keys.clone();
    let name = id.clone();
    if !run_to_end(async move { keys.revoke(&name).await }).await? {
        let message = format!("the state has no key `{id}`: keys of a file are removed with `waymark key revoke`");
        return Err(ApiError::new(Code::KeyNotFound, message).with_param("name"));
    }
    tracing::info!(key = id, "API key revoked");
    Ok(axum::Json(RevokedKey { id, object: "api_key.deleted", deleted: true }))
}

impl CreateKeyRequest {
    /// Checks the request, and returns the key with this secret.
    fn entry(self, secret: &Secret) -> Result<KeyEntry, ApiError> {
        if !KeyId::fits(&self.name) {
            return Err(ApiError::invalid("name", "`name` must have 1 to 64 letters, digits and `._-@`"));
        }
        let scopes = self.scopes.unwrap_or_else(|| vec![Scope::Infer]);
        if scopes.is_empty() || scopes.len() > Scope::ALL.len() {
            return Err(ApiError::invalid("scopes", "`scopes` must hold from 1 to 3 of `infer`, `index` and `admin`"));
        }
        let indexes = IndexScope::new(self.indexes, &scopes);
        let indexes = indexes.map_err(|error| ApiError::invalid("indexes", format!("`indexes`: {error}")))?;
        let at_least_one = |param: &str, limit: Option<u32>| within(param, limit, 1, u32::MAX);
        Ok(KeyEntry {
            id: KeyId::new(&self.name),
            digest: secret.digest(),
            scopes,
            indexes,
            limits: KeyLimits {
                requests_per_minute: at_least_one("requests_per_minute", self.requests_per_minute)?,
                tokens_per_minute: at_least_one("tokens_per_minute", self.tokens_per_minute)?,
                concurrent: at_least_one("concurrent", self.concurrent)?,
            },
            priority: self.priority.unwrap_or_default(),
            private_cache: self.private_cache.unwrap_or(false),
        })
    }
}
