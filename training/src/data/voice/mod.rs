//! Voices of the lesson teacher: the form in which it writes and reads the turns of a protocol, one file per protocol.

mod evo_rag;
mod graphrag_r1;
mod path_router;
mod routerag;
mod search_r1;
mod tearag;

use std::borrow::Cow;
use std::fmt;

use rand_chacha::ChaCha8Rng;
use waymark_index::Mode;

use super::phrases;
use super::reading::{HopFinding, ShownEvidence};
use crate::lessons::lesson::Hop;

pub use evo_rag::EvoRagVoice;
pub use graphrag_r1::GraphragR1Voice;
pub use path_router::PathRouterVoice;
pub use routerag::RouteRagVoice;
pub use search_r1::SearchR1Voice;
pub use tearag::TeaRagVoice;

/// Form of the teacher's turns in a protocol. The protocol itself writes the prompt and the observations; a voice writes
/// what a policy would write, and reads the observations back.
pub trait Voice: fmt::Debug + Send + Sync {
    /// Returns the name of the protocol.
    fn protocol(&self) -> &'static str;

    /// Returns the modes that a query can name, cheapest first. Empty if queries name none, so that every search has the
    /// policy's own mode.
    fn modes(&self) -> &'static [Mode] {
        &[]
    }

    /// Returns a query as the protocol reads it from a turn. By default, unchanged.
    fn query<'q>(&self, query: &'q str) -> Cow<'q, str> {
        Cow::Borrowed(query)
    }

    /// Returns `true` if the query has the form of the protocol's searches. The teacher tries such queries first.
    fn prefers(&self, _query: &str) -> bool {
        true
    }

    /// Returns the names of the entities in a search about `subject`. Empty if searches name none.
    fn entities(&self, _subject: &str) -> Vec<String> {
        Vec::new()
    }

    /// Returns the statement of a finding. If `is_last` is `true`, the finding is the answer of the lesson.
    fn finding(&self, rng: &mut ChaCha8Rng, hop: &Hop, finding: &HopFinding, is_last: bool) -> String {
        phrases::found(rng, hop, finding, is_last)
    }

    /// Returns the text of a turn that searches, up to and including its end tag.
    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String;

    /// Returns the text of a turn that answers, up to and including its end tag.
    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String;

    /// Returns the text of a turn that states that nothing was found. By default the statement is the answer; protocols
    /// with a refusal action write that action instead.
    fn decline(&self, draft: &TurnDraft<'_>, statement: &str) -> String {
        self.answer(draft, statement)
    }

    /// Returns the text of a turn that withdraws the last search. `None` if the protocol has no such action.
    fn backtrack(&self, _draft: &TurnDraft<'_>) -> Option<String> {
        None
    }

    /// Parses the evidence in an observation, best first. `observation` is the decoded text that the policy sees.
    fn read<'o>(&self, observation: &'o str) -> Vec<ShownEvidence<'o>>;
}

/// Contents of a turn before its action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnDraft<'a> {
    /// Number of the turn, from 1.
    pub number: usize,
    /// Statement about the evidence of the previous turn. Empty in the first turn.
    pub found: &'a str,
    /// Reason for the action of this turn.
    pub plan: &'a str,
}

impl TurnDraft<'_> {
    /// Returns `found` and `plan` as one thought.
    pub fn thought(&self) -> String {
        format!("{} {}", self.found, self.plan).trim().to_owned()
    }

    /// Returns the text of a turn with the thought on a line and `action` on the next one.
    fn with_action(&self, action: &str) -> String {
        format!("<think> {} </think>\n{action}", self.thought())
    }
}

/// Search of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchDraft<'a> {
    /// Search text.
    pub query: &'a str,
    /// Mode of the search.
    pub mode: Mode,
    /// Entity that the search is about, for protocols whose searches name one.
    pub entity: &'a str,
}

/// All voices.
static VOICES: &[&dyn Voice] =
    &[&RouteRagVoice, &SearchR1Voice, &PathRouterVoice, &GraphragR1Voice, &TeaRagVoice, &EvoRagVoice];

/// Returns the voice of a protocol. `None` if lessons cannot be written in it.
pub fn voice(protocol: &str) -> Option<&'static dyn Voice> {
    VOICES.iter().copied().find(|voice| voice.protocol() == protocol)
}

/// Returns the names of the protocols that have a voice.
pub fn protocols() -> Vec<&'static str> {
    VOICES.iter().map(|voice| voice.protocol()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use waymark_agent::{Action, ActionOutcome, Format, FoundEvidence, Policy, ReadingRule};
    use waymark_index::{Passage, TripleHit};

    use super::*;

    const SEARCH: SearchDraft<'_> =
        SearchDraft { query: "director of \"Low Tide\"", mode: Mode::Graph, entity: "Low Tide" };

    #[test]
    fn every_loop_understands_every_voice() {
        for name in protocols() {
            let voice = voice(name).unwrap();
            let protocol = Policy::builtin(name).unwrap().protocol;
            // A search ends its turn with a stop string, or with the line break of a labeled line.
            let stops = |turn: &str| {
                let line = turn.trim_end_matches('\n').rsplit('\n').next().unwrap_or_default();
                let labeled = turn.ends_with('\n') && protocol.lines().iter().any(|label| line.starts_with(label));
                labeled || protocol.stops().iter().any(|stop| turn.ends_with(stop))
            };
            for number in [1, 2] {
                let draft = TurnDraft { number, found: "Doc 1 says: \"x\".", plan: "Now I search." };
                for reading in [ReadingRule::First, ReadingRule::SearchFirst, ReadingRule::Lenient] {
                    let turn = voice.search(&draft, &SEARCH);
                    let Action::Search(found) = protocol.parse(&turn, reading) else { panic!("{name}: {turn}") };
                    assert_eq!(found.query, voice.query(SEARCH.query), "{turn}");
                    assert_eq!(found.entities, voice.entities(SEARCH.entity), "{turn}");
                    let named = voice.modes().contains(&Mode::Graph);
                    assert_eq!(found.mode, named.then_some(Mode::Graph), "{turn}");
                    assert!(stops(&turn), "{turn}");
                    for turn in [voice.answer(&draft, "Ann Lee"), voice.decline(&draft, "Ann Lee")] {
                        assert_eq!(protocol.parse(&turn, reading).ending(), Some("Ann Lee"), "{turn}");
                    }
                    if let Some(turn) = voice.backtrack(&draft) {
                        assert_eq!(protocol.parse(&turn, reading), Action::Backtrack, "{turn}");
                        assert!(stops(&turn), "{turn}");
                    }
                }
            }
        }
    }

    #[test]
    fn voices_with_the_same_tags_write_the_same_turns() {
        let draft = TurnDraft { number: 2, found: "Found it.", plan: "So it is." };
        let answer = "<think> Found it. So it is. </think>\n<answer> Leeds </answer>";
        let voices: [&dyn Voice; 3] = [&RouteRagVoice, &SearchR1Voice, &EvoRagVoice];
        assert_eq!(voices.map(|voice| voice.answer(&draft, "Leeds")), [answer; 3]);
        let search = "<think> Found it. So it is. </think>\n<search> director of \"Low Tide\" </search>";
        assert_eq!([SearchR1Voice.search(&draft, &SEARCH), EvoRagVoice.search(&draft, &SEARCH)], [search; 2]);
    }

    #[test]
    fn summaries_and_refusals_are_written_where_protocols_have_them() {
        let draft = TurnDraft { number: 2, found: "Found it.", plan: "So it is." };
        let tearag = Policy::builtin("tearag").unwrap().protocol;
        let turn = TeaRagVoice.search(&draft, &SEARCH);
        assert_eq!(turn.lines().nth(1), Some("Step 2:"), "{turn}");
        assert_eq!(tearag.summary(&turn).as_deref(), Some("Found it."));
        assert_eq!(tearag.summary(&TeaRagVoice.answer(&draft, "x")).as_deref(), Some("Found it. So it is."));
        let first = TurnDraft { number: 1, ..draft };
        assert_eq!(tearag.summary(&TeaRagVoice.search(&first, &SEARCH)), None);
        let evo_rag = Policy::builtin("evo-rag").unwrap().protocol;
        let refusal = evo_rag.parse(&EvoRagVoice.decline(&draft, "nothing"), ReadingRule::First);
        assert_eq!(refusal, Action::Refuse { text: "nothing".to_owned() });
    }

    #[test]
    fn every_voice_reads_what_its_protocol_shows() {
        let passage =
            |id: &str, title: &str, text: &str| Passage { id: id.into(), title: title.into(), text: text.into() };
        let passages =
            [passage("1", "Low Tide", "A film. Doc 1(Title: no one"), passage("2", "Ann Lee", "A director.")];
        let fact = |rank, subject: &str, object: &str| TripleHit {
            rank,
            score: 1.0,
            subject: subject.into(),
            relation: "was directed by".into(),
            object: object.into(),
            passages: vec!["1".into()],
        };
        let triples = [fact(1, "Low Tide", "Ann Lee"), fact(2, "High Tide", "Bob Ray")];
        for name in protocols() {
            let voice = voice(name).unwrap();
            let protocol = Policy::builtin(name).unwrap().protocol;
            for &mode in protocol.shows() {
                let facts_too = matches!(mode, Mode::Triples | Mode::Kag | Mode::Hypergraph);
                let triples: &[TripleHit] = if facts_too { &triples } else { &[] };
                let found = FoundEvidence { mode, passages: &passages, triples };
                let parts = protocol.observation(&ActionOutcome::Evidence(found), Format::Evaluation);
                let text: String = parts.iter().map(waymark_agent::Injected::text).collect();
                let shown = voice.read(&text);
                let numbers: Vec<usize> = shown.iter().map(ShownEvidence::number).collect();
                let facts = ["Ann Lee", "High Tide"];
                let texts = ["A film", "A director"];
                let expected: Vec<&str> = match mode {
                    Mode::Hypergraph => facts.to_vec(),
                    // In one ranking, too, both triples precede the passages here.
                    Mode::Triples | Mode::Kag => [facts, texts].concat(),
                    _ => texts.to_vec(),
                };
                assert_eq!(numbers, (1..=expected.len()).collect::<Vec<_>>(), "{name}, {mode}: {text}");
                for (at, words) in expected.iter().enumerate() {
                    assert!(shown[at].has(words), "{name}, {mode}: {words} {shown:?}");
                }
            }
            assert_eq!(voice.read(""), []);
        }
    }
}
