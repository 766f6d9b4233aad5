//! Reader of a form (`multipart/form-data`), which bounds its size and the time that it takes to arrive.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header;
use multer::{Constraints, Field, Multipart, SizeLimit};

use super::body_pieces::{BodyPieces, BodyProgress};
use super::body_timer::BodyTimer;
use crate::api::error::{ApiError, Code};

/// Maximum size of a field other than the file, in bytes.
const MAX_TEXT: u64 = 4096;

/// Maximum size of everything in a body except the file, in bytes.
const MAX_REST: u64 = 64 << 10;

/// Reader of the form in the body of a request.
#[derive(Debug)]
pub(super) struct FormReader {
    form: Multipart<'static>,
    progress: Arc<BodyProgress>,
    timer: BodyTimer,
    /// Maximum size of the file, in bytes.
    limit: u64,
}

impl FormReader {
    /// Creates a reader of the body of `request`, whose file has at most `limit` bytes. The next part of the body has
    /// `wait` to arrive.
    ///
    /// # Errors
    /// 413 if the declared length is too large, 415 for another media type.
    pub(super) fn new(request: Request, wait: Duration, limit: u64) -> Result<FormReader, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|_| {
            ApiError::new(Code::UnsupportedMediaType, "the body must be sent with `content-type: multipart/form-data`")
        })?;
        // Refused by its declared length, before a byte of it is read.
        if declared_length(&request).is_some_and(|length| length > limit + MAX_REST) {
            return Err(too_large(limit));
        }
        let sizes = SizeLimit::new().whole_stream(limit + MAX_REST).per_field(MAX_TEXT).for_field("file", limit);
        let constraints = Constraints::new().size_limit(sizes);
        let progress = Arc::<BodyProgress>::default();
        let timer = BodyTimer::new(wait, Arc::clone(&progress));
        let body = BodyPieces::new(request.into_body().into_data_stream(), Arc::clone(&progress));
        let form = Multipart::with_constraints(body, boundary, constraints);
        Ok(FormReader { form, progress, timer, limit })
    }

    /// Returns the next field. `None` at the end of the form. The field before it must have been read to its end.
    ///
    /// # Errors
    /// 408 if the body arrives too slowly, 413 if it or the head of the field is too large, 400 if it is not a valid
    /// form.
    pub(super) async fn next_field(&mut self) -> Result<Option<Field<'static>>, ApiError> {
        self.progress.begin_head();
        let field = self.timer.next(self.form.next_field()).await?;
        self.progress.begin_content();
        field.map_err(|error| self.refusal(error))
    }

    /// Returns the content of a field as text.
    ///
    /// # Errors
    /// 408 if the body arrives too slowly, 413 if it is too large, 400 if it is not a valid form.
    pub(super) async fn text(&mut self, field: Field<'static>) -> Result<String, ApiError> {
        self.timer.next(field.text()).await?.map_err(|error| self.refusal(error))
    }

    /// Returns the next chunk of a field. `None` at its end.
    ///
    /// # Errors
    /// Same as [`text`](Self::text).
    pub(super) async fn chunk(&mut self, field: &mut Field<'static>) -> Result<Option<Bytes>, ApiError> {
        self.timer.next(field.chunk()).await?.map_err(|error| self.refusal(error))
    }

    fn refusal(&self, error: multer::Error) -> ApiError {
        match error {
            multer::Error::FieldSizeExceeded { field_name: Some(name), limit } if name != "file" => {
                ApiError::invalid(&name, format!("`{name}` must have at most {limit} bytes"))
            }
            multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. } => too_large(self.limit),
            // A refusal by `BodyPieces`.
            multer::Error::StreamReadFailed(cause) if cause.is::<ApiError>() => {
                cause.downcast().map_or_else(|_| ApiError::bug(), |refusal| *refusal)
            }
            error => ApiError::new(Code::InvalidValue, format!("the body is not a valid form: {error}")),
        }
    }
}

/// Returns the maximum size of the file in `request`, in bytes: the declared length of the body, up to `limit`.
pub(super) fn most_bytes(request: &Request, limit: u64) -> u64 {
    declared_length(request).map_or(limit, |length| length.min(limit))
}

fn declared_length(request: &Request) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(limit: u64) -> ApiError {
    ApiError::new(Code::RequestTooLarge, format!("the file is larger than the limit of {limit} bytes"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use axum::body::Body;
    use futures::stream;

    use super::*;

    const HEAD: &str = "--xyz\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n";

    /// Creates a reader of a form that arrives in chunks of `size` bytes.
    fn reader(form: &str, size: usize) -> FormReader {
        let form = Bytes::copy_from_slice(form.as_bytes());
        let starts = (0..form.len()).step_by(size);
        let chunk = move |start: usize| Ok::<_, Infallible>(form.slice(start..form.len().min(start + size)));
        let body = Body::from_stream(stream::iter(starts.map(chunk)));
        let kind = "multipart/form-data; boundary=xyz";
        let request = Request::builder().header(header::CONTENT_TYPE, kind).body(body).unwrap();
        FormReader::new(request, Duration::from_secs(60), 8 << 20).unwrap()
    }

    #[tokio::test]
    async fn a_file_that_arrives_at_once_is_read_in_small_chunks() {
        let content = "line\r\n".repeat(100_000);
        let form = format!("{HEAD}\r\n{content}\r\n--xyz--\r\n");
        for size in [form.len(), 1000] {
            let mut reader = reader(&form, size);
            let mut field = reader.next_field().await.unwrap().unwrap();
            let mut read = Vec::new();
            while let Some(chunk) = reader.chunk(&mut field).await.unwrap() {
                assert!(chunk.len() <= 16 << 10, "{}", chunk.len());
                read.extend_from_slice(&chunk);
            }
            assert!(read == content.as_bytes(), "{} of {} bytes", read.len(), content.len());
            drop(field);
            assert!(reader.next_field().await.unwrap().is_none());
        }
    }

    #[tokio::test]
    async fn heads_are_bounded_and_so_is_what_precedes_the_first() {
        let long = "a".repeat(1 << 20);
        for form in [long.clone(), format!("{HEAD}x-long: {long}"), format!("--xyz{}", " ".repeat(1 << 20))] {
            for size in [form.len(), 64] {
                let mut reader = reader(&form, size);
                let refused = reader.next_field().await.unwrap_err();
                assert_eq!(refused.code, Code::RequestTooLarge, "{}", refused.message);
                assert!(reader.progress.bytes() < 32 << 10, "{} bytes were read", reader.progress.bytes());
            }
        }
    }

    #[tokio::test]
    async fn the_head_after_a_file_is_bounded() {
        let form = format!("{HEAD}\r\n{}\r\n{HEAD}x-long: {}", "a".repeat(1 << 20), "a".repeat(1 << 20));
        let mut reader = reader(&form, form.len());
        let mut field = reader.next_field().await.unwrap().unwrap();
        while reader.chunk(&mut field).await.unwrap().is_some() {}
        drop(field);
        assert_eq!(reader.next_field().await.unwrap_err().code, Code::RequestTooLarge);
    }
}
