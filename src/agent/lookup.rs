//! What an episode does about a search.

use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, Span, debug_span, field::Empty};
use waymark_index::{Evidence, Mode, Passage};

use super::AgentError;
use super::event::Event;
use super::generator::Source;
use super::neutral;
use super::observation::within;
use super::protocol::{Injected, Outcome, Request, Seen};
use super::run::Run;
use super::search::{SearchError, SearchQuery};
use super::trajectory::Found;

/// What a search gave, and whether it had been made before.
type Looked = (Result<Evidence, SearchError>, bool);

impl<S: Source> Run<S> {
    /// Searches and says what the policy is to see. A search that fails, takes too long or asks for a mode that is not
    /// offered is told to the policy in the place of its evidence, and costs a round like any other.
    pub(super) async fn look_up(&mut self, request: &Request) -> Result<Vec<Injected>, AgentError> {
        let retrieval = self.settings.retrieval;
        let mode = self.mode(request);
        let (turn, query) = (self.turn, request.query.clone());
        let entities = request.entities.clone();
        let started =
            Event::SearchStarted { turn, query: query.clone(), entities: entities.clone(), mode, k: retrieval.k };
        self.tell(started).await?;
        let began = Instant::now();
        let span = debug_span!("search", %mode, cached = Empty, hits = Empty, error = Empty);
        let (result, cached) = self.search(request, mode).instrument(span.clone()).await;
        let seconds = began.elapsed().as_secs_f64();
        self.timings.search += seconds;

        let error = result.as_ref().err().map(SearchError::to_string);
        note(&span, &result, cached);
        let (hits, triples, snapshot) = result.map_or((Vec::new(), Vec::new(), None), |evidence| {
            (evidence.hits, evidence.triples, Some(evidence.snapshot))
        });
        let passages: Vec<Passage> = hits.iter().map(|hit| hit.passage.clone()).collect();
        let seen = Seen { mode, passages: &passages, triples: &triples };
        let outcome = error.as_deref().map_or(Outcome::Evidence(seen), Outcome::Failed);
        let (limit, _) = self.observable();
        let mut parts = within(self.policy.protocol.observation(&outcome, retrieval.format), limit);
        let neutralised = if self.policy.variant.serves() { self.neutralise(&mut parts) } else { 0 };
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
        self.evidence.push(Found {
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
        self.tell(finished).await?;
        Ok(parts)
    }

    /// Withdraws the last search that stands, and says what the policy is to see of it. What the search found stays in
    /// the sequence, to which ids are only added.
    pub(super) async fn withdraw(&mut self) -> Result<Vec<Injected>, AgentError> {
        let turn = self.turn;
        let last = self.evidence.iter_mut().rev().find(|found| found.stands());
        let taken = last.map(|found| {
            found.withdrawn = Some(turn);
            (found.turn, found.query.clone())
        });
        if let Some((search, query)) = &taken {
            self.tell(Event::Withdrawn { turn, search: *search, query: query.clone() }).await?;
        }
        let outcome = Outcome::Withdrawn(taken.as_ref().map(|(_, query)| query.as_str()));
        let mut parts = self.policy.protocol.observation(&outcome, self.settings.retrieval.format);
        if self.policy.variant.serves() {
            self.neutralise(&mut parts);
        }
        Ok(parts)
    }

    async fn search(&self, request: &Request, mode: Mode) -> Looked {
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
        (result.map(|found| self.settings.left(found)), false)
    }

    /// How a search is made.
    fn mode(&self, request: &Request) -> Mode {
        self.settings.mode.or(request.mode).unwrap_or(self.settings.retrieval.mode)
    }

    /// Whether a search is answered from the episode, and none is executed for it.
    pub(super) fn repeats(&self, request: &Request) -> bool {
        self.known(request, self.mode(request)).is_some()
    }

    /// What an earlier search of the episode found that asked for the same, where searches are remembered.
    fn known(&self, request: &Request, mode: Mode) -> Option<Evidence> {
        if !self.policy.variant.serves() {
            return None;
        }
        let same = |found: &&Found| (&found.query, &found.entities) == (&request.query, &request.entities);
        let known = |found: &Found| {
            let evidence = Evidence::of(found.snapshot?, mode, found.hits.clone());
            Some(Evidence { triples: found.triples.clone(), ..evidence })
        };
        self.evidence.iter().filter(same).filter(|found| found.mode == mode).find_map(known)
    }

    /// Makes the tags and labels in what was retrieved harmless, as the policy would read it: where texts are joined, none
    /// comes about either. Returns how many there were.
    fn neutralise(&self, parts: &mut [Injected]) -> usize {
        let tags = self.policy.protocol.tags();
        let mut count = 0;
        for part in parts {
            if let Injected::Retrieved(text) = part {
                let (harmless, met) = neutral::neutralise(text, tags);
                (*text, count) = (harmless, count + met);
            }
        }
        count
    }
}

/// What came of a search, for its span and the log.
fn note(span: &Span, result: &Result<Evidence, SearchError>, cached: bool) {
    span.record("cached", cached);
    match result {
        Ok(evidence) => drop(span.record("hits", i64::try_from(evidence.hits.len()).unwrap_or(i64::MAX))),
        Err(error) => {
            span.record("error", tracing::field::display(error));
            tracing::warn!(%error, "a search gave nothing");
        }
    }
}
