//! Streams that survive a lost connection: the episode continues for a while without its client, and no event is lost
//! or computed twice.
//!
//! `log`: event buffer of a stream · `stream`: state shared by its episode and its readers · `drive`: task that runs
//! the episode · `read`: output to a reader

mod drive;
mod log;
mod read;
mod stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::auth::Caller;
use super::error::{ApiError, Code};
use crate::config::ResumeConfig;
use crate::store::StoreSize;
use stream::ResumableStream;

pub(crate) use drive::drive;
pub(crate) use read::{StreamReader, read};

/// Resumable streams; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    open: Arc<Mutex<HashMap<String, Arc<ResumableStream>>>>,
    config: ResumeConfig,
}

impl Streams {
    pub(crate) fn new(config: ResumeConfig) -> Streams {
        Streams { open: Arc::default(), config }
    }

    /// Checks that `caller` may start another stream. To be called before any work is done for it.
    ///
    /// # Errors
    /// 400 if the server has no resumable streams, 429 if the caller has its maximum number of them, 503 if the server
    /// has.
    pub(crate) fn check_room(&self, caller: &Caller) -> Result<(), ApiError> {
        self.check_capacity(&self.lock(), caller)
    }

    /// Registers a stream without events. It is known until the returned guard is dropped.
    ///
    /// # Errors
    /// 400 if the server has no resumable streams, 429 if the caller has its maximum number of them, 503 if the server
    /// has.
    fn open(&self, id: &str, caller: &Caller) -> Result<OpenStream, ApiError> {
        let mut open = self.lock();
        self.check_capacity(&open, caller)?;
        let stream = Arc::new(ResumableStream::new(caller, self.config.bytes));
        open.insert(id.to_owned(), stream.clone());
        Ok(OpenStream { streams: self.clone(), id: id.to_owned(), stream })
    }

    fn check_capacity(&self, open: &HashMap<String, Arc<ResumableStream>>, caller: &Caller) -> Result<(), ApiError> {
        let ResumeConfig { grace, bytes, count } = self.config;
        if grace.is_zero() || bytes == 0 || count == 0 {
            let message = "this server has no resumable streams: start it with `--resume-seconds`, `--resume-bytes` and \
                           `--resume-count` above 0";
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("resumable"));
        }
        let own = || open.values().filter(|stream| stream.owner == caller.owner);
        caller.may_have_another(own().filter(|stream| !stream.is_done()).count(), "resumable streams")?;
        // A stream that is done holds its place too, for a client that may have missed its end.
        caller.may_take(own().count(), open.len(), count, "resumable streams")
    }

    /// Returns the caller's stream with this ID. A stream is known until some time after its end.
    pub(crate) fn get(&self, id: &str, caller: &Caller) -> Option<Arc<ResumableStream>> {
        self.lock().get(id).filter(|stream| stream.owner == caller.owner).cloned()
    }

    /// Returns the number of streams and the total size of their buffered events.
    pub(crate) fn size(&self) -> StoreSize {
        let open = self.lock();
        StoreSize { count: open.len(), bytes: open.values().map(|stream| stream.bytes()).sum() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<ResumableStream>>> {
        // A poisoned lock is safe to use: no code in here can panic halfway through a change.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of a registered stream. Dropping it ends the stream for its readers too.
#[derive(Debug)]
struct OpenStream {
    streams: Streams,
    id: String,
    stream: Arc<ResumableStream>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.id);
        self.stream.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::body::Bytes;
    use futures::StreamExt;

    use super::*;
    use crate::keys::Secret;

    #[tokio::test]
    async fn a_key_has_as_many_as_it_may_have_at_once() {
        let streams = Streams::new(ResumeConfig::default());
        let of =
            || Caller { owner: Some(Secret::generate().digest().owner()), concurrent: Some(1), ..Caller::default() };
        let one = of();
        let other = of();
        let opened = streams.open("a", &one).unwrap();
        assert_eq!(streams.open("b", &one).unwrap_err().code, Code::ConcurrencyLimited);
        streams.check_room(&other).unwrap();
        // A finished but unread stream still counts, because it still holds memory.
        opened.stream.push(Bytes::from_static(b"x"));
        assert_eq!(streams.size(), StoreSize { count: 1, bytes: 1 });
        opened.stream.end();
        assert!(streams.check_room(&one).is_err());
        let reading = read(opened.stream.clone(), 0).unwrap().unwrap();
        assert_eq!(reading.frames().collect::<Vec<_>>().await, ["x"]);
        streams.check_room(&one).unwrap();
        drop(opened);
        assert_eq!(streams.size(), StoreSize::default());
    }
}
