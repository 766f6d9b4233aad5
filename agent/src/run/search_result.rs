//! Result of a search as an event, a record and an observation.

use std::time::Duration;

use waymark_index::{AnswerRoom, Evidence, Mode, Passage};

use crate::action::{ActionOutcome, FoundEvidence, PolicySearch};
use crate::event::Event;
use crate::observation::within;
use crate::protocol::Injected;
use crate::search::SearchError;
use crate::trajectory::SearchRecord;

use super::setup::EpisodeSetup;

/// A search that is being executed.
#[derive(Debug)]
pub(super) struct PendingSearch {
    /// Number of the turn that asked for it.
    pub(super) turn: usize,
    pub(super) search: PolicySearch,
    pub(super) mode: Mode,
    /// If `true`, an earlier search of the episode answers it.
    pub(super) recalled: bool,
}

/// A search that has ended.
#[derive(Debug)]
pub(super) struct FinishedSearch {
    pub(super) event: Event,
    pub(super) record: SearchRecord,
    /// Parts of the observation.
    pub(super) parts: Vec<Injected>,
}

impl PendingSearch {
    /// Returns the event of its beginning.
    pub(super) fn started(&self, k: usize) -> Event {
        let query = self.search.query.clone();
        let entities = self.search.entities.clone();
        Event::SearchStarted { turn: self.turn, query, entities, mode: self.mode, k }
    }

    /// Builds the observation of at most `room` tokens, and the event and the record, whose evidence takes from
    /// `evidence_room`. A search that failed is reported to the policy in place of its evidence.
    pub(super) fn finish(
        self,
        result: Result<Evidence, SearchError>,
        took: Duration,
        (room, evidence_room): (usize, &mut AnswerRoom),
        setup: &EpisodeSetup,
    ) -> FinishedSearch {
        let PendingSearch { turn, search: PolicySearch { query, entities, .. }, mode, recalled: cached } = self;
        let error = result.as_ref().err().map(SearchError::to_string);
        let (mut hits, mut triples, snapshot) = result.map_or((Vec::new(), Vec::new(), None), |evidence| {
            (evidence.hits, evidence.triples, Some(evidence.snapshot))
        });
        let passages: Vec<Passage> = hits.iter().map(|hit| hit.passage.clone()).collect();
        let stored = FoundEvidence { mode, passages: &passages, triples: &triples };
        // Single items, because later the protocol's own headers stand between them.
        let sanitized = setup.rules.sanitize_items(stored, setup.protocol.tags(), room);
        let seen = sanitized.as_ref().map_or(stored, |items| FoundEvidence {
            mode,
            passages: &items.passages,
            triples: &items.triples,
        });
        let outcome = error.as_deref().map_or(ActionOutcome::Evidence(seen), ActionOutcome::Failed);
        // No more than the room can hold is built and sanitized: a passage may be megabytes long.
        let format = setup.settings.retrieval.format;
        let mut parts = within(setup.protocol.observation(&outcome, format), room);
        let replaced = sanitized.as_ref().map_or(0, |items| items.replaced);
        let neutralised = replaced + setup.rules.sanitize(&mut parts, setup.protocol.tags());
        // Only now, because the policy reads what was found, however long.
        let cut = evidence_room.cut(&mut hits, &mut triples);
        let event = Event::SearchFinished {
            turn,
            query: query.clone(),
            mode,
            hits: hits.clone(),
            triples: triples.clone(),
            snapshot,
            cached,
            milliseconds: took.as_secs_f64() * 1e3,
            neutralised,
            error: error.clone(),
            cut,
        };
        let record = SearchRecord {
            turn,
            query,
            entities,
            mode,
            hits,
            triples,
            snapshot,
            cached,
            neutralised,
            seconds: took.as_secs_f64(),
            error,
            cut,
            withdrawn: None,
        };
        FinishedSearch { event, record, parts }
    }
}
