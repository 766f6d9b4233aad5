//! Voices of the lesson teacher: the form in which it writes and reads the turns of a protocol, one file per protocol.

mod path_router;
mod routerag;

use std::fmt;

use waymark_index::Mode;

use super::reading::ShownEvidence;

pub use path_router::PathRouterVoice;
pub use routerag::RouteRagVoice;

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

    /// Returns the text of a turn that searches, up to and including its end tag.
    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String;

    /// Returns the text of a turn that answers, up to and including its end tag.
    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String;

    /// Returns the text of a turn that states that nothing was found. By default the statement is the answer; protocols
    /// with an action for refusals use that.
    fn decline(&self, draft: &TurnDraft<'_>, statement: &str) -> String {
        self.answer(draft, statement)
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
    /// Returns both parts as one thought.
    pub fn thought(&self) -> String {
        format!("{} {}", self.found, self.plan).trim().to_owned()
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
static VOICES: &[&dyn Voice] = &[&RouteRagVoice, &PathRouterVoice];

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
    use waymark_agent::{Action, ActionOutcome, Format, FoundEvidence, Policy, Protocol, ReadingRule};
    use waymark_index::{Passage, TripleHit};

    use super::*;

    const SEARCH: SearchDraft<'_> =
        SearchDraft { query: "director of \"Low Tide\"", mode: Mode::Graph, entity: "Low Tide" };

    /// Reads a turn as the loop does, with the thought that the environment has opened in later turns.
    fn parsed(protocol: &dyn Protocol, turn: &str, reading: ReadingRule) -> Action {
        protocol.parse(turn, reading)
    }

    #[test]
    fn every_loop_understands_every_voice() {
        for name in protocols() {
            let voice = voice(name).unwrap();
            let protocol = Policy::builtin(name).unwrap().protocol;
            for number in [1, 2] {
                let draft = TurnDraft { number, found: "Doc 1 says: \"x\".", plan: "Now I search." };
                for reading in [ReadingRule::First, ReadingRule::SearchFirst, ReadingRule::Lenient] {
                    let turn = voice.search(&draft, &SEARCH);
                    let Action::Search(found) = parsed(&*protocol, &turn, reading) else { panic!("{name}: {turn}") };
                    assert_eq!(found.query, SEARCH.query, "{turn}");
                    let named = voice.modes().contains(&Mode::Graph);
                    assert_eq!(found.mode, named.then_some(Mode::Graph), "{turn}");
                    assert!(protocol.stops().iter().any(|stop| turn.ends_with(stop)), "{turn}");
                    for turn in [voice.answer(&draft, "Ann Lee"), voice.decline(&draft, "Ann Lee")] {
                        assert_eq!(parsed(&*protocol, &turn, reading).ending(), Some("Ann Lee"), "{turn}");
                    }
                }
            }
        }
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
        let triples = [fact(1, "Low Tide", "Ann Lee"), fact(2, "High\nTide", "Bob Ray")];
        for name in protocols() {
            let voice = voice(name).unwrap();
            let protocol = Policy::builtin(name).unwrap().protocol;
            for &mode in protocol.shows() {
                let found = FoundEvidence { mode, passages: &passages, triples: &triples };
                let parts = protocol.observation(&ActionOutcome::Evidence(found), Format::Evaluation);
                let text: String = parts.iter().map(waymark_agent::Injected::text).collect();
                let shown = voice.read(&text);
                let numbers: Vec<usize> = shown.iter().map(ShownEvidence::number).collect();
                assert_eq!(numbers, [1, 2], "{name}, {mode}: {text}");
                let has = |at: usize, words: &str| shown[at].has(words);
                let right = if mode == Mode::Hypergraph { ["Ann Lee", "High Tide"] } else { ["A film", "A director"] };
                assert!(has(0, right[0]) && has(1, right[1]) && !has(1, right[0]), "{name}, {mode}: {shown:?}");
            }
            assert_eq!(voice.read(""), []);
        }
    }
}
