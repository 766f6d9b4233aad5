//! Rules by which the loops around a protocol differ.

use std::fmt;

use waymark_engine::StopSet;
use waymark_index::{Evidence, Mode};

use super::action::{FoundEvidence, PolicySearch};
use super::observation::most_bytes;
use super::protocol::{Injected, Protocol, ReadingRule};
use super::sanitize::{SanitizedEvidence, sanitize};
use super::segment::{SegmentKind, Tags};
use super::trajectory::SearchRecord;

/// Rules of a loop. The defaults are those of the references' evaluation and training; the serving loop, which is
/// robust against malformed turns and hostile passages, has its own.
pub(super) trait LoopRules: fmt::Debug + Send + Sync {
    /// Returns the rule for reading actions.
    fn reading(&self) -> ReadingRule;

    /// Returns the strings that end a turn.
    fn stops(&self, protocol: &dyn Protocol) -> StopSet {
        StopSet::new(protocol.stops()).with_lines(protocol.lines())
    }

    /// Returns `true` if an answer is shown while it is written, and therefore counts once it has begun.
    fn shows_answers(&self) -> bool {
        false
    }

    /// Returns `true` if one more turn follows the last round.
    fn concludes(&self, protocol: &dyn Protocol) -> bool {
        protocol.concludes()
    }

    /// Returns the text to force so that an answer follows. `None` forces none.
    fn answer_opening(&self, _protocol: &dyn Protocol, _writing: SegmentKind) -> Option<String> {
        None
    }

    /// Returns the evidence with which an earlier search of the episode answers this one. `None` executes the search.
    fn recall(&self, _earlier: &[SearchRecord], _search: &PolicySearch, _mode: Mode) -> Option<Evidence> {
        None
    }

    /// Removes from the frame that begins an observation the white space that the policy has written after its action.
    fn join(&self, _written: &str, _frame: &mut String) {}

    /// Makes headers in single passages and triples harmless, for an observation of `room` tokens. `None` shows the
    /// evidence as it is.
    fn sanitize_items(&self, _evidence: FoundEvidence<'_>, _tags: &Tags, _room: usize) -> Option<SanitizedEvidence> {
        None
    }

    /// Makes tags and labels in retrieved text harmless. Returns their number.
    fn sanitize(&self, _parts: &mut [Injected], _tags: &Tags) -> usize {
        0
    }
}

/// Rules of the serving loop.
#[derive(Debug)]
pub(super) struct ServingRules;

/// Rules of the references' evaluation.
#[derive(Debug)]
pub(super) struct EvaluationRules;

/// Rules of the references' training.
#[derive(Debug)]
pub(super) struct TrainingRules;

impl LoopRules for ServingRules {
    fn reading(&self) -> ReadingRule {
        ReadingRule::Lenient
    }

    fn shows_answers(&self) -> bool {
        true
    }

    fn concludes(&self, _protocol: &dyn Protocol) -> bool {
        true
    }

    fn answer_opening(&self, protocol: &dyn Protocol, writing: SegmentKind) -> Option<String> {
        // Clients wait for an answer; evaluations and training must see that the policy gave none.
        protocol.force_answer(writing)
    }

    fn recall(&self, earlier: &[SearchRecord], search: &PolicySearch, mode: Mode) -> Option<Evidence> {
        let same = |found: &&SearchRecord| {
            found.mode == mode && found.query == search.query && found.entities == search.entities
        };
        let whole = |found: &&SearchRecord| found.cut.is_none();
        let evidence = |found: &SearchRecord| {
            // A failed search has no snapshot, and is tried again.
            let evidence = Evidence::of(found.snapshot?, mode, found.hits.clone());
            Some(Evidence { triples: found.triples.clone(), ..evidence })
        };
        // A record that lacks passages would show the policy less than the search did.
        earlier.iter().filter(same).filter(whole).find_map(evidence)
    }

    fn join(&self, written: &str, frame: &mut String) {
        // A sampled token may reach beyond the closing tag; without this cut the white space would be repeated.
        if let Some(shorter) = frame.strip_prefix(written) {
            *frame = shorter.to_owned();
        }
    }

    fn sanitize_items(&self, evidence: FoundEvidence<'_>, tags: &Tags, room: usize) -> Option<SanitizedEvidence> {
        Some(SanitizedEvidence::of(evidence.passages, evidence.triples, tags, most_bytes(room)))
    }

    fn sanitize(&self, parts: &mut [Injected], tags: &Tags) -> usize {
        let mut count = 0;
        for part in parts {
            if let Injected::Retrieved(text) = part {
                // The joined text is sanitized, so that no tag can arise from two texts either.
                let (harmless, met) = sanitize(text, tags);
                *text = harmless;
                count += met;
            }
        }
        count
    }
}

impl LoopRules for EvaluationRules {
    fn reading(&self) -> ReadingRule {
        ReadingRule::SearchFirst
    }
}

impl LoopRules for TrainingRules {
    fn reading(&self) -> ReadingRule {
        ReadingRule::First
    }

    /// Returns no strings: a turn is sampled to its end, and cut afterwards.
    fn stops(&self, _protocol: &dyn Protocol) -> StopSet {
        StopSet::default()
    }
}
