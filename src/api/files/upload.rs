//! Body of an upload: `multipart/form-data`, written to disk as it arrives.

use std::sync::Arc;

use axum::extract::Request;
use multer::Field;
use utoipa::ToSchema;

use super::content_writer::ContentWriter;
use super::form_reader::FormReader;
use super::registry::{PartialFile, unwritable};
use crate::api::blocking::run_blocking;
use crate::api::error::ApiError;
use crate::api::state::AppState;
use crate::api::vector_stores::VectorStores;

/// Maximum length of a file name, in bytes.
const MAX_FILENAME: usize = 1024;

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
    let mut form = FormReader::new(request, state.config.connection.body, stores.limits.file)?;
    let mut purpose = None;
    let mut file = None;
    while let Some(field) = form.next_field().await? {
        match field.name().unwrap_or_default().to_owned().as_str() {
            "purpose" => purpose = Some(form.text(field).await?),
            "file" if file.is_some() => return Err(ApiError::unsupported("file", "more than one file is")),
            "file" => file = Some(stored(&stores, id, field, &mut form).await?),
            name if name.starts_with("expires_after") => return Err(ApiError::unimplemented("expires_after")),
            name => return Err(ApiError::unknown(name)),
        }
    }
    let StoredFile { filename, bytes, part } = file.ok_or_else(|| ApiError::missing("file"))?;
    let purpose = purpose.ok_or_else(|| ApiError::missing("purpose"))?;
    Ok(Upload { filename, purpose, bytes, part })
}

/// Writes the content of a field to disk.
async fn stored(
    stores: &Arc<VectorStores>,
    id: &str,
    mut field: Field<'static>,
    form: &mut FormReader,
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
    while let Some(chunk) = form.chunk(&mut field).await? {
        writer.write(&chunk).await?;
    }
    let (part, bytes) = writer.finish().await?;
    Ok(StoredFile { filename, bytes, part })
}
