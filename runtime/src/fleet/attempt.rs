//! One streamed request to an engine, with its deadlines. Dropping it closes the socket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout, timeout_at};
use waymark_engine::{TokenStep, TurnFinish};

use super::FleetShared;
use super::endpoint::{causes, chunk};
use super::engine::{EngineFacts, InFlight, RemoteEngine};
use super::event_buffer::EventBuffer;
use super::fault::{Fault, FaultKind};
use super::reply::{ReplyUsage, TokenReply};
use crate::config::FleetTimeouts;

/// Time limit from the last token to the end of a stream. A stream that does not end in time loses its connection, but
/// no token.
const CLOSING: Duration = Duration::from_secs(1);

/// Time limit from the last token of a turn to the end of the engine's stream.
const ENDING: Duration = Duration::from_millis(100);

/// Request of an attempt.
#[derive(Debug)]
pub(super) struct AttemptRequest<'a> {
    pub(super) body: Vec<u8>,
    /// Name of the session.
    pub(super) session: &'a str,
    /// Number of alternatives per token.
    pub(super) top: usize,
    /// Number of stops that the engine knows: the first of the turn's stop strings and lines. The engine ends the
    /// stream at these by itself.
    pub(super) stops: usize,
}

/// End of a complete stream.
#[derive(Debug, Clone)]
pub(super) struct AttemptEnd {
    /// `finish_reason` of the engine.
    pub(super) reason: String,
    /// Token counts, if the engine sent them.
    pub(super) usage: Option<ReplyUsage>,
}

/// Next part of a stream.
#[derive(Debug)]
pub(super) enum AttemptPart {
    /// Tokens.
    Tokens(Vec<TokenStep>),
    /// The end.
    End(AttemptEnd),
}

/// A streamed request.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) engine: Arc<RemoteEngine>,
    facts: EngineFacts,
    fleet: Arc<FleetShared>,
    body: Incoming,
    events: EventBuffer,
    /// Number of alternatives per token.
    top: usize,
    /// Number of stops that the engine knows.
    stops: usize,
    /// Time by which the next token must arrive.
    deadline: Instant,
    /// If `true`, a token has arrived.
    heard: bool,
    ready: VecDeque<Vec<TokenStep>>,
    /// Set once the engine has sent a `finish_reason`. Nothing else makes a stream complete.
    end: Option<AttemptEnd>,
    _in_flight: InFlight,
}

impl Attempt {
    /// Sends a request.
    pub(super) async fn send(
        fleet: &Arc<FleetShared>,
        engine: &Arc<RemoteEngine>,
        facts: EngineFacts,
        request: AttemptRequest<'_>,
    ) -> Result<Attempt, Fault> {
        let AttemptRequest { body, session, top, stops } = request;
        // Counted before the reply, because the choice of an engine compares the requests in flight.
        let in_flight = engine.enter();
        fleet.remote.requests_total.add(1);
        fleet.remote.sent_bytes_total.add(body.len());
        let deadline = Instant::now() + fleet.timeouts.first_token;
        let sent = engine.endpoint.send(Method::POST, facts.dialect.path(), body, Some(session));
        let late = |_| silence(engine, fleet.timeouts.first_token, "first token");
        let response = timeout_at(deadline, sent).await.map_err(late)??;
        Ok(Attempt {
            engine: Arc::clone(engine),
            facts,
            fleet: Arc::clone(fleet),
            body: response.into_body(),
            events: EventBuffer::default(),
            top,
            stops,
            deadline,
            heard: false,
            ready: VecDeque::new(),
            end: None,
            _in_flight: in_flight,
        })
    }

    /// Returns the next part. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<AttemptPart, Fault> {
        loop {
            if let Some(tokens) = self.ready.pop_front() {
                return Ok(AttemptPart::Tokens(tokens));
            }
            if let Some(end) = self.take_end() {
                return Ok(AttemptPart::End(end));
            }
            let received = timeout_at(self.deadline, chunk(&mut self.body)).await;
            let received = received.map_err(|_| self.silent())?;
            match received.map_err(|error| self.broken(causes(&error)))? {
                Some(bytes) => self.take(&bytes)?,
                None => return Err(self.broken("the stream ended without a finish_reason")),
            }
            if self.end.is_some() {
                self.drain().await;
            }
        }
    }

    /// Reads the rest of the stream after the turn has ended by `finish`, if the engine ends there as well: for its
    /// token counts, and so that its connection can be used again. Otherwise the socket is closed. `None` if the stream
    /// does not end in time.
    pub(super) async fn finish(mut self, finish: TurnFinish) -> Option<AttemptEnd> {
        let ends = match finish {
            TurnFinish::Eos | TurnFinish::Length => true,
            TurnFinish::Stop(which) => which < self.stops,
            TurnFinish::Context => false,
        };
        if self.end.is_none() && !ends {
            return None;
        }
        match timeout(ENDING, self.next()).await {
            Ok(Ok(AttemptPart::End(end))) => Some(end),
            // An engine that goes on or fails now has already delivered all tokens of the turn.
            _ => None,
        }
    }

    /// Returns the failure of a complete stream without a token. `None` if a token has arrived.
    pub(super) fn fault_if_empty(&self) -> Option<Fault> {
        (!self.heard).then(|| self.broken("the stream ended without a token"))
    }

    /// Takes the end of the stream, once its last token was delivered.
    fn take_end(&mut self) -> Option<AttemptEnd> {
        if self.ready.is_empty() { self.end.take() } else { None }
    }

    /// Decodes received bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.fleet.remote.received_bytes_total.add(bytes.len());
        self.events.push(bytes).map_err(|error| self.broken(error.to_string()))?;
        while let Some(data) = self.events.next() {
            self.read(&data)?;
        }
        Ok(())
    }

    /// Reads one event.
    fn read(&mut self, data: &[u8]) -> Result<(), Fault> {
        // vLLM also ends failed streams with `[DONE]`, so it proves nothing.
        if data == b"[DONE]" {
            return Ok(());
        }
        let reply: TokenReply =
            serde_json::from_slice(data).map_err(|error| self.broken(format!("invalid event: {error}")))?;
        if let Some(error) = reply.error {
            let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
            return Err(self.broken(format!("the stream failed: {message}")));
        }
        if let (Some(end), Some(usage)) = (&mut self.end, reply.usage) {
            end.usage = Some(usage);
        }
        let Some(choice) = reply.choices.first() else { return Ok(()) };
        let steps = choice.steps(self.top).map_err(|message| self.broken(message))?;
        self.check_version(choice.versions())?;
        if !steps.is_empty() {
            // Comments that keep a connection open are no progress: only tokens move the deadline.
            self.deadline = Instant::now() + self.fleet.timeouts.token;
            self.heard = true;
            self.ready.push_back(steps);
        }
        match choice.finish_reason.as_deref() {
            None => Ok(()),
            Some("abort" | "error") => Err(self.broken("the engine aborted the request")),
            Some(reason) => {
                self.end = Some(AttemptEnd { reason: reason.to_owned(), usage: reply.usage });
                Ok(())
            }
        }
    }

    /// Refuses tokens of weights that were swapped since the identity check.
    fn check_version<'v>(&self, mut versions: impl Iterator<Item = &'v str>) -> Result<(), Fault> {
        let Some(known) = self.facts.version.as_deref() else { return Ok(()) };
        match versions.find(|version| *version != known) {
            Some(other) => {
                let message = format!("its weights were swapped: version {known} was checked, {other} has answered");
                Err(self.engine.endpoint.fault(FaultKind::Unfit, message))
            }
            None => Ok(()),
        }
    }

    /// Reads the rest of a complete stream: the token counts, and the end, after which the connection can be used
    /// again.
    async fn drain(&mut self) {
        let rest = async {
            while let Ok(Some(bytes)) = chunk(&mut self.body).await {
                if self.take(&bytes).is_err() {
                    return;
                }
            }
        };
        // All tokens have arrived, so a failure now does no harm.
        let _ = timeout(CLOSING, rest).await;
        self.engine.succeeded();
    }

    fn silent(&self) -> Fault {
        let FleetTimeouts { first_token, token, .. } = self.fleet.timeouts;
        if self.heard {
            silence(&self.engine, token, "next token")
        } else {
            silence(&self.engine, first_token, "first token")
        }
    }

    fn broken(&self, message: impl Into<String>) -> Fault {
        self.engine.endpoint.fault(FaultKind::Broken, message)
    }
}

fn silence(engine: &RemoteEngine, limit: Duration, what: &str) -> Fault {
    engine.endpoint.fault(FaultKind::Broken, format!("the {what} did not arrive within {} s", limit.as_secs_f64()))
}
