//! Content of a file as the body of a response, read from the disk while it is sent.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::stream;
use tokio::task::spawn_blocking;

use super::body_timer::MIN_RATE;

/// Size of the pieces in which a file is read, in bytes.
const PIECE: usize = 64 << 10;

/// Returns a body with the content of the file at `path`. Between its pieces the file is closed: the limit of open files
/// has room for one per connection, which is its socket.
pub(super) fn body(path: PathBuf) -> Body {
    Body::from_stream(stream::try_unfold((path, 0), next))
}

/// Reads the next piece of a file, from `start` on. Also returns where the piece after it begins. `None` at the end.
async fn next((path, start): (PathBuf, u64)) -> io::Result<Option<(Bytes, (PathBuf, u64))>> {
    let read = move || -> io::Result<_> {
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::with_capacity(PIECE);
        file.take(PIECE as u64).read_to_end(&mut piece)?;
        let end = start + piece.len() as u64;
        Ok((!piece.is_empty()).then(|| (Bytes::from(piece), (path, end))))
    };
    spawn_blocking(read).await.map_err(io::Error::other)?
}

/// Returns the time that a client gets for a file of `bytes`, besides the time for any response.
pub(super) fn time(bytes: u64) -> Duration {
    Duration::from_secs(bytes / MIN_RATE)
}
