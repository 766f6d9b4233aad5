//! Sequences of `/inference/v1/generate` between two requests with the same `X-Session-ID`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use waymark_agent::{Generator, SessionSource};
use waymark_engine::SessionOptions;
use waymark_runtime::fleet::{SourceSession, TokenSource};

use crate::api::auth::Caller;
use crate::api::error::{ApiError, Code};
use crate::keys::KeyOwner;

/// Header that names a session.
const HEADER: &str = "x-session-id";

/// Maximum length of a session's name, in bytes.
const MAX_NAME: usize = 128;

/// Maximum number of parked sessions. Their blocks are taken when running sessions need them.
const MOST: usize = 1024;

/// Time that a session stays parked.
const IDLE: Duration = Duration::from_secs(60);

/// Interval at which sessions that were parked too long are closed.
const SWEEP: Duration = Duration::from_secs(5);

/// Maximum time to wait for a session to be parked, if the next request arrives before the previous turn has ended.
const SETTLING: Duration = Duration::from_millis(250);

/// Name of a session. Two keys with the same text have two sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SessionName {
    owner: Option<KeyOwner>,
    text: String,
}

impl SessionName {
    /// Returns the name in the headers of a request. `None` if there is none.
    ///
    /// # Errors
    /// 400 for a name that is too long or not visible ASCII.
    pub(super) fn of(headers: &HeaderMap, caller: &Caller) -> Result<Option<SessionName>, ApiError> {
        let Some(value) = headers.get(HEADER) else { return Ok(None) };
        let valid =
            |text: &&str| (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        let Some(text) = value.to_str().ok().filter(valid) else {
            let message = format!("`X-Session-ID` must have from 1 to {MAX_NAME} visible ASCII characters");
            return Err(ApiError::new(Code::InvalidHeader, message));
        };
        Ok(Some(SessionName { owner: caller.owner, text: text.to_owned() }))
    }
}

/// A session between two requests.
#[derive(Debug)]
struct ParkedSession {
    session: SourceSession,
    options: SessionOptions,
    since: Instant,
}

/// Parked sessions by name; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParkedSessions(Arc<Mutex<ParkingLot>>);

#[derive(Debug, Default)]
struct ParkingLot {
    sessions: HashMap<SessionName, ParkedSession>,
    /// Latest running turn of each session that has one.
    running: HashMap<SessionName, RunningSequence>,
    /// If `true`, a task closes the sessions that were parked too long.
    swept: bool,
}

/// Sequence that a running turn continues.
#[derive(Debug)]
struct RunningSequence {
    ids: Vec<u32>,
    /// Receiver whose sender is dropped with the turn.
    ended: watch::Receiver<()>,
}

/// Turn of a session. Once it is dropped, the session can be continued.
#[derive(Debug)]
pub(super) struct SessionTurn {
    parked: ParkedSessions,
    name: SessionName,
    running: watch::Sender<()>,
}

impl Drop for SessionTurn {
    fn drop(&mut self) {
        let mut lot = self.parked.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A later turn may have taken the name.
        if lot.running.get(&self.name).is_some_and(|other| other.ended.same_channel(&self.running.subscribe())) {
            lot.running.remove(&self.name);
        }
    }
}

impl ParkedSessions {
    /// Begins a turn of the session `name` after the sequence `ids`.
    pub(super) fn begin_turn(&self, name: SessionName, ids: &[u32]) -> SessionTurn {
        let (running, ended) = watch::channel(());
        let mut lot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lot.running.insert(name.clone(), RunningSequence { ids: ids.to_vec(), ended });
        SessionTurn { parked: self.clone(), name, running }
    }

    /// Waits until the session `name` is parked, if `ids` continues its running turn. A client that ends a turn by its
    /// own rules closes the connection, and may send the next request before the server notices.
    pub(super) async fn settle(&self, name: &SessionName, ids: &[u32]) {
        let ended = {
            let lot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let running = lot.running.get(name).filter(|turn| ids.len() > turn.ids.len() && ids.starts_with(&turn.ids));
            running.map(|turn| turn.ended.clone())
        };
        if let Some(mut ended) = ended {
            // The sender never sends. The wait ends when the sender is dropped, or with the timeout.
            let _ = timeout(SETTLING, ended.changed()).await;
        }
    }

    /// Takes the part of the session `name` that `ids` continues, if its weights and salt are the same. A session that
    /// is not continued is closed.
    pub(super) fn take(
        &self,
        engine: &TokenSource,
        name: &SessionName,
        options: SessionOptions,
        ids: &[u32],
    ) -> Option<SourceSession> {
        let mut lot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Removed even if it does not fit, because a session that is no longer continued only holds KV blocks.
        let ParkedSession { session, options: then, .. } = lot.sessions.remove(name)?;
        let same = then.adapter == options.adapter && then.salt == options.salt;
        let common = session.tokens().iter().zip(ids).take_while(|(token, id)| token.id == **id).count();
        match common {
            0 => None,
            _ if !same => None,
            // Also if `ids` adds nothing, because the session's last token is not computed yet.
            kept if kept == session.len() => Some(session),
            // The client ended its turn before the engine did, or continued with another token.
            kept => Some(engine.shorten(session, kept, options)),
        }
    }

    /// Parks a session, unless the caller already has its share of them. A parked session of the same name is closed.
    pub(super) fn put(&self, name: SessionName, options: SessionOptions, session: SourceSession, caller: &Caller) {
        let mut lot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Removed before the caller's own are counted, because it is replaced.
        lot.sessions.remove(&name);
        let own = lot.sessions.keys().filter(|other| other.owner == name.owner).count();
        if caller.may_take(own, lot.sessions.len(), MOST, "parked sessions").is_err() {
            return;
        }
        lot.sessions.insert(name, ParkedSession { session, options, since: Instant::now() });
        // The sweeper ends once no session is left, so a new session starts it again. A session may be parked while the
        // runtime shuts down, when no task can start.
        if !lot.swept
            && let Ok(runtime) = Handle::try_current()
        {
            lot.swept = true;
            runtime.spawn(self.clone().sweep());
        }
    }

    /// Closes sessions that were parked too long, until none is left.
    async fn sweep(self) {
        loop {
            sleep(SWEEP).await;
            let mut lot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lot.sessions.retain(|_, parked| parked.since.elapsed() < IDLE);
            if lot.sessions.is_empty() {
                lot.swept = false;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_request_waits_for_the_turn_that_it_goes_on_from() {
        let parked = ParkedSessions::default();
        let name = SessionName { owner: None, text: "s".to_owned() };
        let turn = parked.begin_turn(name.clone(), &[1, 2]);
        // `settle` does not wait: one asks for another sample of the sequence, the other does not continue the turn.
        for ids in [[1, 2].as_slice(), &[1, 3, 4]] {
            assert!(parked.settle(&name, ids).now_or_never().is_some(), "{ids:?}");
        }
        let started = Instant::now();
        parked.settle(&name, &[1, 2, 3]).await;
        assert!(started.elapsed() >= SETTLING, "not for ever");
        let waiting = parked.clone();
        let same = name.clone();
        let waits = tokio::spawn(async move { waiting.settle(&same, &[1, 2, 3]).await });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        let later = parked.begin_turn(name.clone(), &[9]);
        drop(turn);
        assert!(waits.await.is_ok());
        let running = || parked.0.lock().unwrap_or_else(PoisonError::into_inner).running.len();
        assert_eq!(running(), 1, "an earlier turn does not end a later one");
        drop(later);
        assert_eq!(running(), 0);
    }
}
