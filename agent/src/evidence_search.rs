//! Execution of searches and withdrawals in an episode.

use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, Span, debug_span, field::Empty};
use waymark_index::{Evidence, Mode, Passage};

use super::AgentError;
use super::event::Event;
use super::generator::SessionSource;
use super::observation::within;
use super::protocol::{ActionOutcome, FoundEvidence, Injected, PolicySearch};
use super::run::EpisodeRun;
use super::sanitize;
use super::search::{SearchError, SearchQuery};
use super::trajectory::SearchRecord;

/// Result of a search, and whether it was taken from an earlier one.
type SearchResult = (Result<Evidence, SearchError>, bool);

impl<S: SessionSource> EpisodeRun<S> {
    /// Searches and returns the observation. A search that fails, times out or asks for an unavailable mode is reported
    /// to the policy in place of its evidence, and costs a round like any other.
    pub(super) async fn search_for(&mut self, request: &PolicySearch) -> Result<Vec<Injected>, AgentError> {
        let retrieval = self.settings.retrieval;
        let mode = self.mode(request);
        let turn = self.turn;
        let query = request.query.clone();
        let entities = request.entities.clone();
        let started =
            Event::SearchStarted { turn, query: query.clone(), entities: entities.clone(), mode, k: retrieval.k };
        self.emit(started).await?;
        let began = Instant::now();
        let span = debug_span!("search", %mode, cached = Empty, hits = Empty, error = Empty);
        let (result, cached) = self.search(request, mode).instrument(span.clone()).await;
        // Measured before the observation is built: only the search counts.
        let seconds = began.elapsed().as_secs_f64();
        self.timings.search += seconds;

        let error = result.as_ref().err().map(SearchError::to_string);
        record_outcome(&span, &result, cached);
        let (hits, triples, snapshot) = result.map_or((Vec::new(), Vec::new(), None), |evidence| {
            (evidence.hits, evidence.triples, Some(evidence.snapshot))
        });
        let passages: Vec<Passage> = hits.iter().map(|hit| hit.passage.clone()).collect();
        let seen = FoundEvidence { mode, passages: &passages, triples: &triples };
        let outcome = error.as_deref().map_or(ActionOutcome::Evidence(seen), ActionOutcome::Failed);
        let (limit, _) = self.observation_limit();
        let mut parts = within(self.policy.protocol.observation(&outcome, retrieval.format), limit);
        let neutralised = if self.policy.variant.is_serving() { self.sanitize(&mut parts) } else { 0 };
        let finished = Event::SearchFinished {
            turn,
            query: query.clone(),
            mode,
            hits: hits.clone(),
            triples: triples.clone(),
            snapshot,
            cached,
            milliseconds: seconds * 1e3,
            neutralised,
            error: error.clone(),
        };
        self.evidence.push(SearchRecord {
            turn,
            query,
            entities,
            mode,
            hits,
            triples,
            snapshot,
            cached,
            neutralised,
            seconds,
            error,
            withdrawn: None,
        });
        self.emit(finished).await?;
        Ok(parts)
    }

    /// Withdraws the last search that was not withdrawn yet, and returns the observation. The evidence stays in the
    /// sequence, which only grows.
    pub(super) async fn withdraw(&mut self) -> Result<Vec<Injected>, AgentError> {
        let turn = self.turn;
        let last = self.evidence.iter_mut().rev().find(|found| found.stands());
        let taken = last.map(|found| {
            found.withdrawn = Some(turn);
            (found.turn, found.query.clone())
        });
        if let Some((search, query)) = &taken {
            self.emit(Event::Withdrawn { turn, search: *search, query: query.clone() }).await?;
        }
        let outcome = ActionOutcome::Withdrawn(taken.as_ref().map(|(_, query)| query.as_str()));
        let mut parts = self.policy.protocol.observation(&outcome, self.settings.retrieval.format);
        if self.policy.variant.is_serving() {
            self.sanitize(&mut parts);
        }
        Ok(parts)
    }

    async fn search(&self, request: &PolicySearch, mode: Mode) -> SearchResult {
        if let Some(known) = self.known(request, mode) {
            return (Ok(known), true);
        }
        let Some(searcher) = self.runtime.searcher.clone() else {
            return (Err(SearchError::Failed("no index is loaded".to_owned())), false);
        };
        let wanted = self.settings.query(&request.query, &request.entities, mode);
        let wanted = wanted.deadline(self.deadline.into_std());
        let query = SearchQuery { wanted, written: request.written.clone() };
        let result = timeout_at(self.deadline, searcher.search(query)).await.unwrap_or(Err(SearchError::Timeout));
        (result.map(|found| self.settings.permitted(found)), false)
    }

    /// Returns the retrieval mode of a search.
    fn mode(&self, request: &PolicySearch) -> Mode {
        self.settings.mode.or(request.mode).unwrap_or(self.settings.retrieval.mode)
    }

    /// Returns `true` if the search is answered from the episode and not executed.
    pub(super) fn repeats(&self, request: &PolicySearch) -> bool {
        self.known(request, self.mode(request)).is_some()
    }

    /// Returns the evidence of an earlier search of the episode that asked for the same, if searches are remembered.
    fn known(&self, request: &PolicySearch, mode: Mode) -> Option<Evidence> {
        // The reference loops execute every search again.
        if !self.policy.variant.is_serving() {
            return None;
        }
        let same = |found: &&SearchRecord| (&found.query, &found.entities) == (&request.query, &request.entities);
        let known = |found: &SearchRecord| {
            let evidence = Evidence::of(found.snapshot?, mode, found.hits.clone());
            Some(Evidence { triples: found.triples.clone(), ..evidence })
        };
        self.evidence.iter().filter(same).filter(|found| found.mode == mode).find_map(known)
    }

    /// Sanitizes tags and labels in retrieved text, after joining, so that no tag can arise from two texts either.
    /// Returns their number.
    fn sanitize(&self, parts: &mut [Injected]) -> usize {
        let tags = self.policy.protocol.tags();
        let mut count = 0;
        for part in parts {
            if let Injected::Retrieved(text) = part {
                let (harmless, met) = sanitize::sanitize(text, tags);
                (*text, count) = (harmless, count + met);
            }
        }
        count
    }
}

/// Records the result of a search in its span and in the log.
fn record_outcome(span: &Span, result: &Result<Evidence, SearchError>, cached: bool) {
    span.record("cached", cached);
    match result {
        Ok(evidence) => drop(span.record("hits", i64::try_from(evidence.hits.len()).unwrap_or(i64::MAX))),
        Err(error) => {
            span.record("error", tracing::field::display(error));
            tracing::warn!(%error, "a search failed");
        }
    }
}
