//! Body of an upload: `multipart/form-data`, written to disk as it arrives.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header;
use multer::{Constraints, Field, Multipart, SizeLimit};
use tokio::sync::mpsc;
use tokio::time::timeout;
use utoipa::ToSchema;
use waymark_runtime::durable_file;

use super::registry::{PartialFile, unwritable};
use crate::api::blocking::run_blocking;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;
use crate::api::vector_stores::VectorStores;

/// Maximum size of a field other than the file, in bytes.
const MAX_TEXT: u64 = 4096;

/// Maximum size of everything in a body beside the file, in bytes.
const MAX_REST: u64 = 64 << 10;

/// Maximum length of a file name, in bytes.
const MAX_FILENAME: usize = 1024;

/// Number of chunks between the connection and the disk.
const CHUNKS: usize = 4;

/// Fields of an upload.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct UploadForm {
    /// Content of the file, with its name.
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
    /// `assistants` or `user_data`.
    purpose: String,
}

/// Received upload.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) filename: String,
    pub(super) purpose: String,
    /// Size of the file in bytes.
    pub(super) bytes: u64,
    pub(super) part: PartialFile,
}

/// Reads the body of `request` and writes the file under `id`.
///
/// # Errors
/// 400 if a field is missing or unknown, 408 if the body stops arriving, 413 if the file is too large, 415 for another
/// media type, 503 if the disk fails.
pub(super) async fn receive(state: &AppState, id: &str, request: Request) -> Result<Upload, ApiError> {
    let stores = Arc::clone(state.vector_stores()?);
    let limit = stores.limits.file;
    let wait = state.config.connection.body;
    let mut form = multipart(request, limit)?;
    let mut purpose = None;
    let mut file = None;
    while let Some(field) = within(wait, form.next_field(), limit).await? {
        match field.name().unwrap_or_default().to_owned().as_str() {
            "purpose" => purpose = Some(within(wait, field.text(), limit).await?),
            "file" if file.is_some() => return Err(ApiError::unsupported("file", "more than one file is")),
            "file" => file = Some(stored(&stores, id, field, wait).await?),
            name if name.starts_with("expires_after") => return Err(ApiError::unimplemented("expires_after")),
            name => return Err(ApiError::unknown(name)),
        }
    }
    let (filename, bytes, part) = file.ok_or_else(|| ApiError::missing("file"))?;
    let purpose = purpose.ok_or_else(|| ApiError::missing("purpose"))?;
    Ok(Upload { filename, purpose, bytes, part })
}

/// Returns the maximum size of the file in `request`, in bytes: the declared length of the body, up to `limit`.
pub(super) fn most_bytes(request: &Request, limit: u64) -> u64 {
    declared_length(request).map_or(limit, |length| length.min(limit))
}

fn declared_length(request: &Request) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn multipart(request: Request, limit: u64) -> Result<Multipart<'static>, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(kind).map_err(|_| {
        ApiError::new(Code::UnsupportedMediaType, "the body must be sent with `content-type: multipart/form-data`")
    })?;
    // Refused by its declared length, before a byte of it is read.
    if declared_length(&request).is_some_and(|length| length > limit + MAX_REST) {
        return Err(too_large(limit));
    }
    let sizes = SizeLimit::new().whole_stream(limit + MAX_REST).per_field(MAX_TEXT).for_field("file", limit);
    let constraints = Constraints::new().size_limit(sizes);
    Ok(Multipart::with_constraints(request.into_body().into_data_stream(), boundary, constraints))
}

/// Writes the content of a field to disk. Returns its name and its size.
async fn stored(
    stores: &Arc<VectorStores>,
    id: &str,
    mut field: Field<'static>,
    wait: Duration,
) -> Result<(String, u64, PartialFile), ApiError> {
    let limit = stores.limits.file;
    let filename = field.file_name().unwrap_or_default().to_owned();
    if filename.is_empty() || filename.len() > MAX_FILENAME {
        let message = format!("`file` must have a name of at most {MAX_FILENAME} bytes");
        return Err(ApiError::invalid("file", message));
    }
    let part = {
        let stores = Arc::clone(stores);
        let id = id.to_owned();
        let filename = filename.clone();
        run_blocking(move || stores.files.begin(&id, &filename).map_err(unwritable)).await?
    };
    let (chunks, writer) = writer(part.content.clone());
    let mut bytes = 0;
    while let Some(chunk) = within(wait, field.chunk(), limit).await? {
        bytes += chunk.len() as u64;
        // The writer has failed; its error follows.
        if chunks.send(chunk).await.is_err() {
            break;
        }
    }
    drop(chunks);
    writer.await.map_err(|_| ApiError::bug())??;
    Ok((filename, bytes, part))
}

/// Writes chunks on a blocking thread, and makes the file durable at their end.
fn writer(path: PathBuf) -> (mpsc::Sender<Bytes>, tokio::task::JoinHandle<Result<(), ApiError>>) {
    let (chunks, mut received) = mpsc::channel::<Bytes>(CHUNKS);
    let write = move || {
        let mut file = File::create(&path).map_err(unwritable)?;
        while let Some(chunk) = received.blocking_recv() {
            file.write_all(&chunk).map_err(unwritable)?;
        }
        file.sync_all().map_err(unwritable)?;
        durable_file::sync_parent(&path).map_err(unwritable)
    };
    (chunks, tokio::task::spawn_blocking(write))
}

/// Waits for the next part of the body.
async fn within<T>(
    wait: Duration,
    next: impl Future<Output = Result<T, multer::Error>>,
    limit: u64,
) -> Result<T, ApiError> {
    let late = |_| {
        let message = format!("no part of the body arrived within {} seconds", wait.as_secs_f64());
        ApiError::new(Code::RequestTimeout, message)
    };
    timeout(wait, next).await.map_err(late)?.map_err(|error| match error {
        multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => too_large(limit),
        error => ApiError::new(Code::InvalidValue, format!("the body is not a valid form: {error}")),
    })
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(Code::RequestTooLarge, format!("the file is larger than the limit of {limit} bytes"))
}
