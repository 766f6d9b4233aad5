//! Content of an upload on its way to the disk.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::Arc;

use waymark_models::durable_file;

use super::registry::{PartialFile, unwritable};
use crate::api::blocking::run_blocking;
use crate::api::error::ApiError;

/// Number of bytes that are collected before they are written.
const BURST: usize = 256 << 10;

/// Writer of the content of a file.
///
/// A client may take minutes to send a file. The writer has a thread and an open file only while it writes a burst, and
/// its folder stays until that burst is written, even if the client disconnects.
#[derive(Debug)]
pub(super) struct ContentWriter {
    part: Arc<PartialFile>,
    /// Data to be written.
    burst: Vec<u8>,
    /// Number of bytes so far.
    bytes: u64,
}

impl ContentWriter {
    pub(super) fn new(part: PartialFile) -> ContentWriter {
        ContentWriter { part: Arc::new(part), burst: Vec::new(), bytes: 0 }
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// 503 if the disk fails.
    pub(super) async fn write(&mut self, chunk: &[u8]) -> Result<(), ApiError> {
        self.bytes += chunk.len() as u64;
        self.burst.extend_from_slice(chunk);
        if self.burst.len() < BURST { Ok(()) } else { self.append(false).await }
    }

    /// Makes the content durable. Returns its file and its size in bytes.
    ///
    /// # Errors
    /// 503 if the disk fails.
    pub(super) async fn finish(mut self) -> Result<(Arc<PartialFile>, u64), ApiError> {
        self.append(true).await?;
        Ok((self.part, self.bytes))
    }

    /// Writes the data so far. If `last` is `true`, makes the file durable.
    async fn append(&mut self, last: bool) -> Result<(), ApiError> {
        let part = Arc::clone(&self.part);
        let burst = std::mem::take(&mut self.burst);
        self.burst = run_blocking(move || append(&part, burst, last).map_err(unwritable)).await?;
        Ok(())
    }
}

/// Appends `burst` to the content of `part`. Returns the burst without its data, for the next one.
fn append(part: &PartialFile, mut burst: Vec<u8>, last: bool) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().create(true).append(true).open(&part.content)?;
    file.write_all(&burst)?;
    if last {
        file.sync_all()?;
        durable_file::sync_parent(&part.content)?;
    }
    burst.clear();
    Ok(burst)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::super::registry::UploadedFiles;
    use super::*;

    #[test]
    fn uploads_that_run_share_one_thread() {
        let folder = tempfile::tempdir().unwrap();
        let files = UploadedFiles::open(folder.path().to_owned(), 1 << 20).unwrap();
        let writer = |id: &str| ContentWriter::new(files.begin(id, "a.txt").unwrap());
        let mut writers = [writer("a"), writer("b"), writer("c")];
        let chunk = vec![b'x'; 100 << 10];
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            for _ in 0..7 {
                for writer in &mut writers {
                    writer.write(&chunk).await.unwrap();
                }
            }
            // Everything else that needs a thread goes on beside them.
            assert_eq!(run_blocking(|| Ok(1)).await.unwrap(), 1);
            for writer in writers {
                let (part, bytes) = writer.finish().await.unwrap();
                assert_eq!((fs::metadata(&part.content).unwrap().len(), bytes), (700 << 10, 700 << 10));
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "dropped uploads leave nothing");
    }
}
