//! Body of an upload: `multipart/form-data`, written to disk as it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::extract::Request;
use axum::http::header;
use futures::TryStreamExt;
use multer::{Constraints, Field, Multipart, SizeLimit};
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::content_writer::ContentWriter;
use super::registry::{PartialFile, unwritable};
use crate::api::blocking::run_blocking;
use crate::api::error::{ApiError, Code};
use crate::api::state::AppState;
use crate::api::vector_stores::VectorStores;

/// Maximum size of a field other than the file, in bytes.
const MAX_TEXT: u64 = 4096;

/// Maximum size of everything in a body except the file, in bytes.
const MAX_REST: u64 = 64 << 10;

/// Maximum length of a file name, in bytes.
const MAX_FILENAME: usize = 1024;

/// Minimum rate at which a file must arrive and be taken, in bytes per second.
pub(super) const MIN_RATE: u64 = 64 << 10;

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
    pub(super) part: Arc<PartialFile>,
}

/// File of an upload, on disk.
struct StoredFile {
    filename: String,
    /// Size in bytes.
    bytes: u64,
    part: Arc<PartialFile>,
}

/// Reads the body of `request` and writes the file under `id`.
///
/// # Errors
/// 400 if a field is missing or unknown, 408 if the body arrives too slowly, 413 if the file is too large, 415 for
/// another media type, 503 if the disk fails.
pub(super) async fn receive(state: &AppState, id: &str, request: Request) -> Result<Upload, ApiError> {
    let stores = Arc::clone(state.vector_stores()?);
    let limit = stores.limits.file;
    let mut timer = BodyTimer::new(state.config.connection.body, limit);
    let mut form = multipart(request, limit, Arc::clone(&timer.arrived))?;
    let mut purpose = None;
    let mut file = None;
    while let Some(field) = timer.next(form.next_field()).await? {
        match field.name().unwrap_or_default().to_owned().as_str() {
            "purpose" => purpose = Some(timer.next(field.text()).await?),
            "file" if file.is_some() => return Err(ApiError::unsupported("file", "more than one file is")),
            "file" => file = Some(stored(&stores, id, field, &mut timer).await?),
            name if name.starts_with("expires_after") => return Err(ApiError::unimplemented("expires_after")),
            name => return Err(ApiError::unknown(name)),
        }
    }
    let StoredFile { filename, bytes, part } = file.ok_or_else(|| ApiError::missing("file"))?;
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

/// Creates the reader of a form, which adds the number of bytes that it receives to `arrived`.
fn multipart(request: Request, limit: u64, arrived: Arc<AtomicU64>) -> Result<Multipart<'static>, ApiError> {
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
    let body = request.into_body().into_data_stream().inspect_ok(move |chunk| {
        arrived.fetch_add(chunk.len() as u64, Relaxed);
    });
    Ok(Multipart::with_constraints(body, boundary, constraints))
}

/// Writes the content of a field to disk.
async fn stored(
    stores: &Arc<VectorStores>,
    id: &str,
    mut field: Field<'static>,
    timer: &mut BodyTimer,
) -> Result<StoredFile, ApiError> {
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
    let mut writer = ContentWriter::new(part);
    while let Some(chunk) = timer.next(field.chunk()).await? {
        writer.write(&chunk).await?;
    }
    let (part, bytes) = writer.finish().await?;
    Ok(StoredFile { filename, bytes, part })
}

/// Limits of the time that a body takes to arrive. The time that the disk takes does not count.
#[derive(Debug)]
struct BodyTimer {
    /// Maximum time until the next part of the body.
    wait: Duration,
    /// Time spent waiting for the body so far.
    waited: Duration,
    /// Number of bytes that have arrived.
    arrived: Arc<AtomicU64>,
    /// Maximum size of the file, in bytes, for errors.
    limit: u64,
}

impl BodyTimer {
    fn new(wait: Duration, limit: u64) -> BodyTimer {
        BodyTimer { wait, waited: Duration::ZERO, arrived: Arc::default(), limit }
    }

    /// Waits for the next part of the body.
    ///
    /// # Errors
    /// 408 if the part or the body so far took too long, 413 if the body is too large, 400 if it is not a valid form.
    async fn next<T>(&mut self, part: impl Future<Output = Result<T, multer::Error>>) -> Result<T, ApiError> {
        let started = Instant::now();
        let received = timeout(self.wait.min(self.left()), part).await;
        self.waited += started.elapsed();
        received.map_err(|_| self.late())?.map_err(|error| match error {
            multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => too_large(self.limit),
            error => ApiError::new(Code::InvalidValue, format!("the body is not a valid form: {error}")),
        })
    }

    /// Returns the time that is left until the body counts as too slow: a wait for one part, and the time that the
    /// minimum rate gives to the bytes so far.
    fn left(&self) -> Duration {
        let earned = Duration::from_secs_f64(self.arrived.load(Relaxed) as f64 / MIN_RATE as f64);
        self.wait.saturating_add(earned).saturating_sub(self.waited)
    }

    fn late(&self) -> ApiError {
        let message = format!(
            "the body arrived too slowly: leave no pause of {} seconds, and send at least {} KiB per second on average",
            self.wait.as_secs_f64(),
            MIN_RATE >> 10
        );
        ApiError::new(Code::RequestTimeout, message)
    }
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(Code::RequestTooLarge, format!("the file is larger than the limit of {limit} bytes"))
}
