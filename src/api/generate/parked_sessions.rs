//! Sequences of `/inference/v1/generate` between two requests with the same `X-Session-ID`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
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
    /// If `true`, a task closes the sessions that were parked too long.
    swept: bool,
}

impl ParkedSessions {
    /// Takes what `ids` continues of the session `name`, with the same weights. A session that is not continued is closed.
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
        // A turn needs a token that is not computed yet.
        match common.min(ids.len().saturating_sub(1)) {
            0 => None,
            _ if !same => None,
            kept if kept == session.len() => Some(session),
            // The client ended its turn before the engine did, or went on with another token.
            kept => Some(engine.fork(&session, kept, options)),
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
        // The sweeper ends with the last session, and a new one starts it again. A session may be parked while the runtime
        // ends, when no task can start.
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
