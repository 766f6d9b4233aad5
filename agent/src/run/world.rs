//! Everything outside of an episode: the receiver of its events, the clock and the index.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, Span, debug_span, field::Empty};
use waymark_index::Evidence;

use crate::AgentError;
use crate::episode::EpisodeSettings;
use crate::event::Event;
use crate::generator::{Resumption, Steps};
use crate::search::{Search, SearchError, SearchQuery};

use super::machine::EpisodeMachine;
use super::step::{SearchStep, TurnEnd};

/// The world of an episode; see the module documentation.
#[derive(Debug)]
pub(super) struct World {
    events: mpsc::Sender<Event>,
    searcher: Option<Arc<dyn Search>>,
    settings: Arc<EpisodeSettings>,
    began: Instant,
    deadline: Instant,
}

impl World {
    /// Creates the world of an episode that begins now.
    pub(super) fn new(
        events: mpsc::Sender<Event>,
        searcher: Option<Arc<dyn Search>>,
        settings: Arc<EpisodeSettings>,
    ) -> World {
        let began = Instant::now();
        let deadline = began + settings.budget.time();
        World { events, searcher, settings, began, deadline }
    }

    /// Continues the clock of an episode that has already taken `elapsed`.
    pub(super) fn resumed(self, elapsed: Duration) -> World {
        let began = self.began.checked_sub(elapsed).unwrap_or(self.began);
        World { began, deadline: began + self.settings.budget.time(), ..self }
    }

    /// Returns the time since the beginning of the episode.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sends an event.
    pub(super) async fn emit(&self, event: Event) -> Result<(), AgentError> {
        self.events.send(event).await.map_err(|_| AgentError::Disconnected)
    }

    /// Sends events, in order.
    pub(super) async fn emit_all(&self, events: Vec<Event>) -> Result<(), AgentError> {
        for event in events {
            self.emit(event).await?;
        }
        Ok(())
    }

    /// Passes the tokens of a generation to the machine, until the generation ends, the machine stops it or the time of
    /// the episode is used.
    pub(super) async fn stream(
        &self,
        mut turn: impl Steps,
        machine: &mut EpisodeMachine,
    ) -> Result<TurnEnd, AgentError> {
        loop {
            // A timeout polls the generation first, so it would not end one whose next token is always ready. Dropping
            // the generation, here and below, stops it in the engine.
            if turn.finish().is_none() && Instant::now() >= self.deadline {
                return Ok(TurnEnd::Time);
            }
            let next = timeout_at(self.deadline, turn.next()).await;
            while let Some(Resumption { delivered, reason }) = turn.resumption() {
                self.emit(Event::Resumed { turn: machine.turn().number, tokens: delivered, reason }).await?;
            }
            let step = match next {
                // A turn that has its last token is whole, even if its closing outlasts the deadline.
                Err(_) => return Ok(turn.finish().map_or(TurnEnd::Time, TurnEnd::from)),
                Ok(None) => return Ok(turn.finish().map_or(TurnEnd::Eos, TurnEnd::from)),
                Ok(Some(step)) => step?,
            };
            machine.transcript_mut().mark_first_token(|| self.began.elapsed());
            let events = machine.sampled(&step);
            self.emit_all(events).await?;
            if machine.is_stopped() {
                return Ok(TurnEnd::Stopped);
            }
        }
    }

    /// Executes a search, unless an earlier one answers it. A search that fails, times out or asks for an
    /// unavailable mode is reported to the policy in place of its evidence.
    pub(super) async fn search(&self, request: SearchStep) -> Result<Evidence, SearchError> {
        // A recalled search has a span too: a trace of the program shows everything that the policy searches for.
        let cached = request.recalled.is_some();
        let span = debug_span!("search", mode = %request.mode, cached, hits = Empty, error = Empty);
        let result = match request.recalled {
            Some(evidence) => Ok(evidence),
            None => {
                let SearchStep { search, mode, .. } = request;
                let wanted = self.settings.query(&search.query, &search.entities, mode);
                // The index itself stops a search that the episode no longer waits for.
                let wanted = wanted.deadline(self.deadline.into_std());
                let query = SearchQuery { wanted, written: search.written, tenant: self.settings.tenant };
                self.execute(query).instrument(span.clone()).await
            }
        };
        record_outcome(&span, &result);
        result
    }

    async fn execute(&self, query: SearchQuery) -> Result<Evidence, SearchError> {
        let Some(searcher) = &self.searcher else {
            return Err(SearchError::Failed("no index is loaded".to_owned()));
        };
        // A searcher may not look at the deadline of the query.
        let found = timeout_at(self.deadline, searcher.search(query)).await.unwrap_or(Err(SearchError::Timeout));
        found.map(|evidence| self.settings.permitted(evidence))
    }
}

/// Records the result of a search in its span and in the log.
fn record_outcome(span: &Span, result: &Result<Evidence, SearchError>) {
    match result {
        Ok(evidence) => drop(span.record("hits", i64::try_from(evidence.hits.len()).unwrap_or(i64::MAX))),
        Err(error) => {
            span.record("error", tracing::field::display(error));
            tracing::warn!(%error, "a search failed");
        }
    }
}
