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

    /// Whether there can be another stream: to be asked before any work is done for it.
    ///
    /// # Errors
    /// 400 where there are to be none, 503 where there are as many as may be.
    pub(crate) fn room(&self) -> Result<(), ApiError> {
        self.leaves_room(self.lock().len())
    }

    /// A new stream, before its first event. It is known until the guard is dropped.
    ///
    /// # Errors
    /// 400 where there are to be none, 503 where there are as many as may be.
    fn open(&self, id: &str, caller: &Caller) -> Result<Opened, ApiError> {
        let mut open = self.lock();
        self.leaves_room(open.len())?;
        let stream = Arc::new(Stream::new(caller, self.config.bytes));
        open.insert(id.to_owned(), stream.clone());
        Ok(Opened { streams: self.clone(), id: id.to_owned(), stream })
    }

    fn leaves_room(&self, open: usize) -> Result<(), ApiError> {
        let ResumeConfig { grace, bytes, count } = self.config;
        if grace.is_zero() || bytes == 0 || count == 0 {
            let message = "this server has no resumable streams: start it with `--resume-seconds`, `--resume-bytes` and \
                           `--resume-count` above 0";
            return Err(ApiError::new(Code::UnsupportedParameter, message).with_param("resumable"));
        }
        if open >= count {
            return Err(ApiError::new(Code::QueueFull, "there are too many resumable streams already"));
        }
        Ok(())
    }

    /// The caller's stream of this id, until a while after its end.
    pub(crate) fn get(&self, id: &str, caller: &Caller) -> Option<Arc<Stream>> {
        self.lock().get(id).filter(|stream| stream.owner == caller.key).cloned()
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
