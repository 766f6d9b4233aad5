//! Streams that outlive their sockets: an episode goes on for a while without its client, and nothing is lost or computed
//! twice.
//!
//! `log`: the events of one stream, bounded · `stream`: what its episode and its readers share · `drive`: what moves the
//! episode on · `read`: what a reader gets

mod drive;
mod log;
mod read;
mod stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::auth::Caller;
use super::error::{ApiError, Code};
use super::metrics::Held;
use crate::config::ResumeConfig;
use stream::Stream;

pub(crate) use drive::drive;
pub(crate) use read::{Reading, read};

/// The streams that can be taken up again; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    open: Arc<Mutex<HashMap<String, Arc<Stream>>>>,
    config: ResumeConfig,
}

impl Streams {
    pub(crate) fn new(config: ResumeConfig) -> Streams {
        Streams { open: Arc::default(), config }
    }

    /// Whether there can be another stream of `caller`: to be asked before any work is done for it.
    ///
    /// # Errors
    /// 400 where there are to be none, 429 where the caller has as many as it may, 503 where there are as many as may be.
    pub(crate) fn room(&self, caller: &Caller) -> Result<(), ApiError> {
        self.leaves_room(&self.lock(), caller)
    }

    /// A new stream, before its first event. It is known until the guard is dropped.
    ///
    /// # Errors
    /// 400 where there are to be none, 429 where the caller has as many as it may, 503 where there are as many as may be.
    fn open(&self, id: &str, caller: &Caller) -> Result<Opened, ApiError> {
        let mut open = self.lock();
        self.leaves_room(&open, caller)?;
        let stream = Arc::new(Stream::new(caller, self.config.bytes));
        open.insert(id.to_owned(), stream.clone());
        Ok(Opened { streams: self.clone(), id: id.to_owned(), stream })
    }

    fn leaves_room(&self, open: &HashMap<String, Arc<Stream>>, caller: &Caller) -> Result<(), ApiError> {
        let ResumeConfig { grace, bytes, count } = self.config;
        if grace.is_zero() || bytes == 0 || count == 0 {
            let message = "this server has no resumable streams: start it with `--resume-seconds`, `--resume-bytes` and \
                           `--resume-count` above 0";
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("resumable"));
        }
        let own = open.values().filter(|stream| stream.owner == caller.key && !stream.is_done()).count();
        caller.may_have_another(own, "resumable streams")?;
        if open.len() >= count {
            return Err(ApiError::new(Code::QueueFull, "there are too many resumable streams already"));
        }
        Ok(())
    }

    /// The caller's stream of this id, until a while after its end.
    pub(crate) fn get(&self, id: &str, caller: &Caller) -> Option<Arc<Stream>> {
        self.lock().get(id).filter(|stream| stream.owner == caller.key).cloned()
    }

    /// How many are known, and what their events take.
    pub(crate) fn held(&self) -> Held {
        let open = self.lock();
        Held { count: open.len(), bytes: open.values().map(|stream| stream.bytes()).sum() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Stream>>> {
        // Nothing in here can panic halfway through a change.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream for as long as it is known. Dropped, it ends for its readers too, whatever dropped it.
#[derive(Debug)]
struct Opened {
    streams: Streams,
    id: String,
    stream: Arc<Stream>,
}

impl Drop for Opened {
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

    use super::super::auth::KeyId;
    use super::*;

    #[tokio::test]
    async fn a_key_has_as_many_as_it_may_have_at_once() {
        let streams = Streams::new(ResumeConfig::default());
        let of = |name: &str| Caller { key: Some(KeyId::new(name)), concurrent: Some(1), ..Caller::default() };
        let (one, other) = (of("one"), of("other"));
        let opened = streams.open("a", &one).unwrap();
        assert_eq!(streams.open("b", &one).unwrap_err().code, Code::ConcurrencyLimited);
        streams.room(&other).unwrap();
        // Over but not read, it is still somebody's work that lies here.
        opened.stream.push(Bytes::from_static(b"x"));
        assert_eq!(streams.held(), Held { count: 1, bytes: 1 });
        opened.stream.end();
        assert!(streams.room(&one).is_err());
        let reading = read(opened.stream.clone(), 0).unwrap().unwrap();
        assert_eq!(reading.frames().collect::<Vec<_>>().await, ["x"]);
        streams.room(&one).unwrap();
        drop(opened);
        assert_eq!(streams.held(), Held::default());
    }
}
