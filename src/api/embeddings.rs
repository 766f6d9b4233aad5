//! `/v1/embeddings`: OpenAI's embeddings interface to the index's embedder.

use std::sync::Arc;

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_index::EmbedError;
use waymark_runtime::embedding::TextEmbedder;

use super::auth::Caller;
use super::blocking::run_blocking;
use super::body::{JsonBody, WireRequest};
use super::embedding_tokens::texts_of;
use super::encoder_queue::EncoderQueue;
use super::encoding::check_embedded;
use super::error::{ApiError, Code, Refusals};
use super::error_mapping::encoder_error;
use super::sampling_params;
use super::state::AppState;

/// Maximum number of texts per request, as in OpenAI's interface.
const MAX_INPUTS: usize = 2048;

/// Number of texts embedded at a time. If the client disconnects, the remaining chunks are skipped.
const CHUNK: usize = 32;

/// Upper bound of the size of a number in an answer, in bytes.
const NUMBER_BYTES: usize = 14;

/// Embedder and the name under which it is served.
#[derive(Debug)]
pub struct ServedEmbedder {
    /// Name to use in `model`; the embedder's own ID is accepted as well.
    pub name: String,
    /// Embedder.
    pub embedder: Arc<dyn TextEmbedder>,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Queue in front of the embedder.
    pub(crate) queue: EncoderQueue,
}

/// Request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingRequest {
    /// Name of the embedder in `/v1/models`, or its ID.
    pub model: String,
    /// Texts to embed: at most 2,048, each neither empty nor longer than the embedder reads.
    pub input: EmbeddingInput,
    /// Encoding of the vectors; defaults to `float`.
    pub encoding_format: Option<EncodingFormat>,
    /// Length of the vectors; only the embedder's own length is supported.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    /// Name of the end user, for the log.
    pub user: Option<String>,
}

impl WireRequest for EmbeddingRequest {}

/// One text or several, as strings or as token IDs of cl100k_base, the encoding of OpenAI's embedding models.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string, a list of strings, or token IDs")]
pub enum EmbeddingInput {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Token IDs of one text.
    Tokens(Vec<u32>),
    /// Token IDs of several texts.
    TokenLists(Vec<Vec<u32>>),
}

/// Encoding of vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodingFormat {
    /// Lists of numbers.
    #[default]
    Float,
    /// Base64 of little-endian 32-bit floats.
    Base64,
}

/// Embeddings in the order of the input.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingList {
    /// Always `list`.
    pub object: &'static str,
    /// Name of the embedder.
    pub model: String,
    /// One embedding per text.
    pub data: Vec<TextEmbedding>,
    /// Tokens used.
    pub usage: EmbeddingUsage,
}

/// Embedding of one text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Embedding)]
pub struct TextEmbedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// Index of the text in the input, from 0.
    pub index: usize,
    /// Vector of the text.
    pub embedding: EncodedVector,
}

/// Vector in the requested encoding.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Vector)]
#[serde(untagged)]
pub enum EncodedVector {
    /// Numbers.
    Float(Vec<f32>),
    /// Base64 of little-endian 32-bit floats.
    Base64(String),
}

/// Number of tokens embedded. Estimated if the embedder is an endpoint elsewhere, which does not count them for each text.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingUsage {
    /// Number of tokens in all texts.
    pub prompt_tokens: usize,
    /// Same as `prompt_tokens`.
    pub total_tokens: usize,
}

/// Embeds texts.
#[utoipa::path(post, path = "/v1/embeddings", operation_id = "createEmbedding", tag = "models", request_body = EmbeddingRequest, responses(
    (status = 200, description = "the embeddings", body = EmbeddingList),
    Refusals,
))]
pub(crate) async fn create(
    State(state): State<AppState>,
    caller: Caller,
    JsonBody(request): JsonBody<EmbeddingRequest>,
) -> Result<axum::Json<EmbeddingList>, ApiError> {
    let served = state.embedder.clone().ok_or_else(|| {
        ApiError::new(Code::NotConfigured, "this server has no embedder: start it with `--index`, or without `--mock`")
    })?;
    let format = request.encoding_format.unwrap_or_default();
    sampling_params::note_user(request.user.as_deref());
    check_model(&request, &served)?;
    let texts = texts(request.input, &served).await?;
    check_texts(&texts, &served, state.config.answer_bytes)?;
    let (vectors, tokens) = embed(&state, &caller, &served, texts).await?;
    let data = vectors
        .into_iter()
        .enumerate()
        .map(|(index, vector)| TextEmbedding { object: "embedding", index, embedding: write(vector, format) })
        .collect();
    let usage = EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(axum::Json(EmbeddingList { object: "list", model: served.name.clone(), data, usage }))
}

/// Checks that the request names this embedder, and the length of its vectors.
fn check_model(request: &EmbeddingRequest, served: &ServedEmbedder) -> Result<(), ApiError> {
    let embedder = &served.embedder;
    if request.model != served.name && request.model != embedder.id() {
        let message = format!("the model `{}` does not embed: use `{}`", request.model, served.name);
        return Err(ApiError::new(Code::ModelNotFound, message).with_param("model"));
    }
    if request.dimensions.is_some_and(|dims| dims != embedder.dims()) {
        let message = format!("`dimensions` must be {} for this embedder", embedder.dims());
        return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("dimensions"));
    }
    Ok(())
}

/// Returns the texts of the request.
async fn texts(input: EmbeddingInput, served: &ServedEmbedder) -> Result<Vec<String>, ApiError> {
    let max_bytes = served.embedder.max_bytes();
    match input {
        EmbeddingInput::Text(text) => Ok(vec![text]),
        EmbeddingInput::Texts(texts) => Ok(texts),
        EmbeddingInput::Tokens(ids) => run_blocking(move || texts_of(vec![ids], max_bytes)).await,
        EmbeddingInput::TokenLists(lists) => {
            check_count(lists.len())?;
            run_blocking(move || texts_of(lists, max_bytes)).await
        }
    }
}

/// Checks the number of texts.
fn check_count(count: usize) -> Result<(), ApiError> {
    if count <= MAX_INPUTS {
        return Ok(());
    }
    Err(ApiError::invalid("input", format!("`input` holds {count} texts, {MAX_INPUTS} at most")))
}

/// Checks the texts, and that their vectors fit into an answer of `answer_bytes`.
fn check_texts(texts: &[String], served: &ServedEmbedder, answer_bytes: usize) -> Result<(), ApiError> {
    let embedder = &served.embedder;
    if texts.is_empty() {
        return Err(ApiError::invalid("input", "`input` is empty"));
    }
    check_count(texts.len())?;
    if let Some(index) = texts.iter().position(String::is_empty) {
        return Err(ApiError::invalid(&format!("input[{index}]"), "a text to embed must not be empty"));
    }
    let bytes = texts.len().saturating_mul(embedder.dims()).saturating_mul(NUMBER_BYTES);
    if bytes > answer_bytes {
        let message = format!(
            "`input` holds too many texts: their vectors take up to {bytes} bytes, at most {answer_bytes} are sent"
        );
        return Err(ApiError::invalid("input", message));
    }
    let mut lengths = texts.iter().map(String::len).enumerate();
    lengths.try_for_each(|(index, bytes)| check_embedded(&format!("input[{index}]"), bytes, embedder.max_bytes()))
}

/// Checks that a text fits into the embedder: texts are never truncated.
fn check_length(index: usize, tokens: usize, most: usize) -> Result<usize, ApiError> {
    if tokens <= most {
        return Ok(tokens);
    }
    let message =
        format!("`input[{index}]` has {tokens} tokens, but this embedder reads at most {most}: split the text");
    Err(ApiError::new(Code::ContextLengthExceeded, message).with_param(format!("input[{index}]")))
}

/// Embeds chunk by chunk on blocking threads. Between two chunks other requests have their turn. An endpoint takes
/// several requests at once, so it needs no turns.
async fn embed(
    state: &AppState,
    caller: &Caller,
    served: &ServedEmbedder,
    mut texts: Vec<String>,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let admitted = Arc::new(served.queue.admit(caller)?);
    let remote = served.embedder.is_remote();
    let mut vectors = Vec::with_capacity(texts.len());
    let mut tokens = 0;
    while !texts.is_empty() {
        let chunk: Vec<String> = texts.drain(..CHUNK.min(texts.len())).collect();
        let embedder = Arc::clone(&served.embedder);
        let first = vectors.len();
        let place = Arc::clone(&admitted);
        // An endpoint encodes nothing here, and its slowest reply would hold the turn.
        let turn = if remote { None } else { Some(served.queue.turn().await) };
        // Admitted after the turn was taken, so a waiting chunk holds no memory for encoding.
        let longest = chunk.iter().map(String::len).max().unwrap_or(0);
        let share = match remote {
            true => None,
            false => Some(state.admit_embedding(caller, "input", longest, embedder.max_bytes()).await?),
        };
        let work = move || -> Result<_, ApiError> {
            // The blocking thread holds them, because it keeps working even if the request is dropped.
            let _held = (place, turn, share);
            let texts: Vec<&str> = chunk.iter().map(String::as_str).collect();
            let mut tokens = 0;
            for (index, text) in (first..).zip(&texts) {
                tokens += check_length(index, embedder.count_tokens(text), embedder.max_tokens())?;
            }
            let failed = |error: EmbedError| encoder_error("embedder", error.as_ref(), Code::EmbedderUnavailable);
            Ok((embedder.embed(&texts).map_err(failed)?, tokens))
        };
        let (more, count) = run_blocking(work).await?;
        vectors.extend(more);
        tokens += count;
    }
    Ok((vectors, tokens))
}

fn write(vector: Vec<f32>, format: EncodingFormat) -> EncodedVector {
    match format {
        EncodingFormat::Float => EncodedVector::Float(vector),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            EncodedVector::Base64(BASE64.encode(bytes))
        }
    }
}
