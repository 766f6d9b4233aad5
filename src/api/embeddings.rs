//! `/v1/embeddings`: the index's embedder, in OpenAI's words.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore};
use utoipa::ToSchema;
use waymark_index::Embed;

use super::beside::beside;
use super::body::{Json, Wire};
use super::error::{ApiError, Code, Refusals};
use super::knobs;
use super::state::AppState;

/// Texts one request may bring, as in OpenAI's interface.
const MAX_INPUTS: usize = 2048;

/// Texts embedded at a time: a client that goes away stops the rest.
const CHUNK: usize = 32;

/// Requests that may wait for the one whose texts are embedded; more are refused.
const WAITING: usize = 64;

/// An embedder that can also count.
pub trait TextEmbedder: Embed + fmt::Debug {
    /// How many tokens `text` has.
    fn count_tokens(&self, text: &str) -> usize;

    /// How many tokens of a text it reads; what is longer would be cut.
    fn max_tokens(&self) -> usize;
}

/// An embedder and the name that requests know it by.
#[derive(Debug)]
pub struct ServedEmbedder {
    /// The name to use in `model`; the embedder's own id is understood as well.
    pub name: String,
    /// What embeds.
    pub embedder: Arc<dyn TextEmbedder>,
    /// Seconds since 1970.
    pub created: u64,
    /// How requests get to it.
    pub(crate) gate: Gate,
}

/// Lets the texts of one request at a time to an embedder that searches need as well: a search waits for what one
/// request has begun, not for all that wait, and those who wait hold no thread.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Taken for a chunk, and given on in the order they came.
    turn: Arc<Mutex<()>>,
    admitted: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self { turn: Arc::default(), admitted: Semaphore::new(1 + WAITING) }
    }
}

/// A request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    /// The embedder's name in `/v1/models`, or its id.
    pub model: String,
    /// What to embed: at most 2,048 texts, none of them empty or longer than the embedder reads.
    pub input: EmbeddingInput,
    /// How the vectors are written; `float` when not given.
    pub encoding_format: Option<EncodingFormat>,
    /// Length of the vectors; only the embedder's own is supported.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    /// Who asks, for the log.
    pub user: Option<String>,
}

impl Wire for EmbeddingRequest {}

/// One text or several. Lists of token ids are known and refused.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum EmbeddingInput {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Token ids: refused, for the client's tokenizer is not the embedder's.
    Tokens(Vec<u32>),
    /// Several lists of token ids: refused as well.
    TokenLists(Vec<Vec<u32>>),
}

/// How vectors are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodingFormat {
    /// As lists of numbers.
    #[default]
    Float,
    /// As base64 of little-endian 32-bit floats.
    Base64,
}

/// Embeddings in the order of the input.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingList {
    /// Always `list`.
    pub object: &'static str,
    /// The embedder's name.
    pub model: String,
    /// One embedding per text.
    pub data: Vec<Embedding>,
    /// What it cost.
    pub usage: EmbeddingUsage,
}

/// One embedding.
#[derive(Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// Which text it belongs to.
    pub index: usize,
    /// The vector.
    pub embedding: Vector,
}

/// A vector in the format that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// Numbers.
    Float(Vec<f32>),
    /// Base64 of little-endian 32-bit floats.
    Base64(String),
}

/// Tokens embedded.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Tokens of all texts.
    pub prompt_tokens: usize,
    /// The same.
    pub total_tokens: usize,
}

/// Embeds texts.
#[utoipa::path(post, path = "/v1/embeddings", operation_id = "createEmbedding", tag = "models", request_body = EmbeddingRequest, responses(
    (status = 200, description = "the embeddings", body = EmbeddingList),
    Refusals,
))]
pub(crate) async fn create(
    State(state): State<AppState>,
    Json(request): Json<EmbeddingRequest>,
) -> Result<axum::Json<EmbeddingList>, ApiError> {
    let served = state.embedder.ok_or_else(|| {
        ApiError::new(Code::NotConfigured, "this server has no embedder: start it with `--index` or without `--mock`")
    })?;
    let format = request.encoding_format.unwrap_or_default();
    knobs::note_user(request.user.as_deref());
    let texts = check(request, &served)?;
    let (vectors, tokens) = embed(&served, texts).await?;
    let data = vectors
        .into_iter()
        .enumerate()
        .map(|(index, vector)| Embedding { object: "embedding", index, embedding: write(vector, format) })
        .collect();
    let usage = EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(axum::Json(EmbeddingList { object: "list", model: served.name.clone(), data, usage }))
}

/// The texts, if everything else about the request is right as well.
fn check(request: EmbeddingRequest, served: &ServedEmbedder) -> Result<Vec<String>, ApiError> {
    let embedder = &served.embedder;
    if request.model != served.name && request.model != embedder.id() {
        let message = format!("the model `{}` does not embed: there is {}", request.model, served.name);
        return Err(ApiError::new(Code::ModelNotFound, message).with_param("model"));
    }
    if request.dimensions.is_some_and(|dims| dims != embedder.dims()) {
        let message = format!("`dimensions` must be {} for this embedder", embedder.dims());
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("dimensions"));
    }
    let texts = match request.input {
        EmbeddingInput::Text(text) => vec![text],
        EmbeddingInput::Texts(texts) => texts,
        EmbeddingInput::Tokens(_) | EmbeddingInput::TokenLists(_) => {
            let message = "lists of token ids are not supported: send text";
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("input"));
        }
    };
    match texts.iter().position(|text| text.is_empty()) {
        _ if texts.is_empty() => Err(ApiError::invalid("input", "`input` is empty")),
        _ if texts.len() > MAX_INPUTS => {
            Err(ApiError::invalid("input", format!("`input` holds {} texts, {MAX_INPUTS} at most", texts.len())))
        }
        Some(index) => Err(ApiError::invalid(&format!("input[{index}]"), "a text to embed must not be empty")),
        None => Ok(texts),
    }
}

/// A text is embedded whole or not at all.
fn check_length(index: usize, tokens: usize, most: usize) -> Result<usize, ApiError> {
    if tokens <= most {
        return Ok(tokens);
    }
    let message = format!("`input[{index}]` has {tokens} tokens, and this embedder reads {most}: send it in parts");
    Err(ApiError::new(Code::ContextLengthExceeded, message).with_param(format!("input[{index}]")))
}

/// Embeds chunk by chunk, away from the threads that answer requests; between two chunks others have their turn.
async fn embed(served: &ServedEmbedder, mut texts: Vec<String>) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let too_many = |_| ApiError::new(Code::QueueFull, "too many requests wait for the embedder");
    let _admitted = served.gate.admitted.try_acquire().map_err(too_many)?;
    let (mut vectors, mut tokens) = (Vec::with_capacity(texts.len()), 0);
    while !texts.is_empty() {
        let chunk: Vec<String> = texts.drain(..CHUNK.min(texts.len())).collect();
        let (embedder, first) = (Arc::clone(&served.embedder), vectors.len());
        let turn = Arc::clone(&served.gate.turn).lock_owned().await;
        let work = move || -> Result<_, ApiError> {
            // Held by the thread, which goes on when nobody waits for it any more.
            let _held = turn;
            let texts: Vec<&str> = chunk.iter().map(String::as_str).collect();
            let mut tokens = 0;
            for (index, text) in (first..).zip(&texts) {
                tokens += check_length(index, embedder.count_tokens(text), embedder.max_tokens())?;
            }
            let failed = |error| ApiError::new(Code::Internal, format!("the embedder failed: {error}"));
            Ok((embedder.embed(&texts).map_err(failed)?, tokens))
        };
        let (more, count) = beside(work).await?;
        vectors.extend(more);
        tokens += count;
    }
    Ok((vectors, tokens))
}

fn write(vector: Vec<f32>, format: EncodingFormat) -> Vector {
    match format {
        EncodingFormat::Float => Vector::Float(vector),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            Vector::Base64(BASE64.encode(bytes))
        }
    }
}
