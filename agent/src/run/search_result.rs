//! Result of a search as an event, a record and an observation.

use std::time::Duration;

use waymark_index::{AnswerCut, AnswerRoom, Evidence, Mode, Passage};

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

    /// Builds the observation of at most `room` tokens, and the event and the record, whose evidence uses up
    /// `evidence_room`. A search that failed is reported to the policy in place of its evidence.
    pub(super) fn finish(
        self,
        result: Result<Evidence, SearchError>,
        took: Duration,
        room: usize,
        evidence_room: &mut AnswerRoom,
        setup: &EpisodeSetup,
    ) -> FinishedSearch {
        let PendingSearch { turn, search: PolicySearch { query, entities, .. }, mode, recalled } = self;
        let found = SearchRecord::asked(turn, query, entities, mode).with_result(result, took);
        let mut record = SearchRecord { cached: recalled, ..found };
        let passages: Vec<Passage> = record.hits.iter().map(|hit| hit.passage.clone()).collect();
        let stored = FoundEvidence { mode, passages: &passages, triples: &record.triples };
        // Items are sanitized one by one, because the protocol later writes its own headers between them.
        let sanitized = setup.rules.sanitize_items(stored, setup.protocol.tags(), room);
        let seen = sanitized.as_ref().map_or(stored, |items| FoundEvidence {
            mode,
            passages: &items.passages,
            triples: &items.triples,
        });
        let outcome = record.error.as_deref().map_or(ActionOutcome::Evidence(seen), ActionOutcome::Failed);
        // No more than the room can hold is built and sanitized: a passage may be megabytes long.
        let format = setup.settings.retrieval.format;
        let mut parts = within(setup.protocol.observation(&outcome, format), room);
        let replaced = sanitized.as_ref().map_or(0, |items| items.replaced);
        record.neutralised = replaced + setup.sanitize(&mut parts);
        // Cut only now, because the policy reads all that was found, however long.
        let left_out = evidence_room.cut(&mut record.hits, &mut record.triples);
        record.cut = AnswerCut::of(left_out, evidence_room.limit());
        FinishedSearch { event: finished(&record), record, parts }
    }
}

/// Returns the event of a search's end.
fn finished(record: &SearchRecord) -> Event {
    Event::SearchFinished {
        turn: record.turn,
        query: record.query.clone(),
        mode: record.mode,
        hits: record.hits.clone(),
        triples: record.triples.clone(),
        snapshot: record.snapshot,
        cached: record.cached,
        milliseconds: record.seconds * 1e3,
        neutralised: record.neutralised,
        error: record.error.clone(),
        cut: record.cut,
    }
}
