//! The right behavior and the bad ones, as turns in the form of a protocol.

use waymark_index::Mode;

use super::Trap;
use super::world::{HOPS, RIGHT, WRONG, WorldFact};
use crate::data::voice::{SearchDraft, TurnDraft, Voice};

/// Behavior in an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// Finds both facts with a search each, and answers right.
    Right,
    /// A cheap bad behavior.
    Bad(Trap),
}

impl Behavior {
    /// All behaviors, the right one first.
    pub(super) fn all() -> impl Iterator<Item = Behavior> {
        [Behavior::Right].into_iter().chain(Trap::ALL.map(Behavior::Bad))
    }

    /// Name for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Behavior::Right => "right",
            Behavior::Bad(trap) => trap.name(),
        }
    }

    /// Turns of an episode with at most `rounds` searches. After them, the environment may force an answer.
    pub(super) fn turns(self, voice: &dyn Voice, rounds: usize) -> Vec<String> {
        match self {
            Behavior::Right => vec![
                search(voice, 1, "", &HOPS[0], HOPS[0].query),
                search(voice, 2, &found(&HOPS[0]), &HOPS[1], HOPS[1].query),
                answer(voice, 3, &found(&HOPS[1]), RIGHT),
            ],
            Behavior::Bad(Trap::Repeat) => {
                let statement = found(&HOPS[0]);
                let told = |number: usize| if number > 1 { statement.as_str() } else { "" };
                let mut turns: Vec<String> =
                    (1..=rounds).map(|number| search(voice, number, told(number), &HOPS[0], HOPS[0].query)).collect();
                turns.push(answer(voice, rounds + 1, told(rounds + 1), WRONG));
                turns
            }
            Behavior::Bad(Trap::Refuse) => {
                let draft = TurnDraft { number: 1, found: "", plan: "I do not know this." };
                vec![voice.decline(&draft, "I could not find an answer.")]
            }
            Behavior::Bad(Trap::Answer) => vec![answer(voice, 1, "", WRONG)],
            // The last search exceeds the number of rounds and is not executed.
            Behavior::Bad(Trap::Exhaust) => (1..=rounds + 1)
                .map(|number| {
                    let told = if number > 1 { "This does not help." } else { "" };
                    search(voice, number, told, &ELSEWHERE, &format!("What is {} {number}?", ELSEWHERE.subject))
                })
                .collect(),
        }
    }
}

/// Fact that the question does not ask for.
const ELSEWHERE: WorldFact = WorldFact { subject: "High Hill", relation: "", object: "", ..HOPS[0] };

/// Statement of a fact.
fn found(fact: &WorldFact) -> String {
    let WorldFact { subject, relation, object, .. } = fact;
    format!("The fact \"{subject} {relation} {object}\" implies the answer: {object}.")
}

fn search(voice: &dyn Voice, number: usize, found: &str, fact: &WorldFact, query: &str) -> String {
    let draft = TurnDraft { number, found, plan: "I search for it." };
    // Voices whose queries name modes write the cheapest.
    let mode = voice.modes().first().copied().unwrap_or(Mode::Passage);
    voice.search(&draft, &SearchDraft { query, mode, entity: fact.subject })
}

fn answer(voice: &dyn Voice, number: usize, found: &str, text: &str) -> String {
    voice.answer(&TurnDraft { number, found, plan: "So I answer." }, text)
}
