//! TeaRAG's voice: numbered steps of key entities and a subquery, and a summary of the evidence at the beginning of the
//! next turn. The format has no place for the reason of a search, so only findings and conclusions are written.

use rand_chacha::ChaCha8Rng;

use super::{SearchDraft, TurnDraft, Voice};
use crate::data::phrases;
use crate::data::reading::{HopFinding, ShownEvidence, parse_items};
use crate::lessons::lesson::Hop;

/// Voice of TeaRAG; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TeaRagVoice;

/// Maximum number of key entities in a step.
const MOST_ENTITIES: usize = 4;

/// Longest subject that counts as a name, in words. A longer one is a description with names in it.
const LONGEST_NAME: usize = 6;

impl TeaRagVoice {
    /// Returns the line that summarizes the evidence. Empty in the first turn, which has no evidence.
    fn summary(draft: &TurnDraft<'_>, text: &str) -> String {
        if draft.number == 1 { String::new() } else { format!(" Summary: {text}\n") }
    }
}

impl Voice for TeaRagVoice {
    fn protocol(&self) -> &'static str {
        "tearag"
    }

    /// Returns `true` for questions, because a subquery should be a question if the lesson offers one.
    fn prefers(&self, query: &str) -> bool {
        query.trim_end().ends_with('?')
    }

    /// Returns the names in a subject: the subject itself, or runs of capitalized words if it is a description.
    fn entities(&self, subject: &str) -> Vec<String> {
        let short = subject.split_whitespace().count() <= LONGEST_NAME;
        let names = if short { Vec::new() } else { capitalized_runs(subject) };
        let names = if names.is_empty() { vec![subject.to_owned()] } else { names };
        // The protocol separates entities by commas, so a name with a comma is read as two.
        let parts = names.iter().flat_map(|name| name.split(',')).map(str::trim).filter(|part| !part.is_empty());
        parts.take(MOST_ENTITIES).map(str::to_owned).collect()
    }

    fn finding(&self, rng: &mut ChaCha8Rng, hop: &Hop, finding: &HopFinding, _is_last: bool) -> String {
        phrases::implied(rng, hop, finding)
    }

    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String {
        let summary = TeaRagVoice::summary(draft, draft.found);
        let entities = self.entities(search.entity).join(", ");
        let number = draft.number;
        format!("{summary}Step {number}:\nImportant entity: {entities}\nSubquery: {}\n", search.query)
    }

    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String {
        format!("{}Final answer: {answer}", TeaRagVoice::summary(draft, &draft.thought()))
    }

    fn read<'o>(&self, observation: &'o str) -> Vec<ShownEvidence<'o>> {
        parse_items(observation, "<Reference> ", " </Reference>")
    }
}

/// Returns the runs of words that begin with a capital letter or a digit. The first word is left out, because it is
/// capitalized in any text.
fn capitalized_runs(text: &str) -> Vec<String> {
    let mut runs: Vec<Vec<&str>> = vec![Vec::new()];
    for word in text.split_whitespace().skip(1) {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        if bare.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit()) {
            runs.last_mut().into_iter().for_each(|run| run.push(bare));
        } else {
            runs.push(Vec::new());
        }
    }
    runs.into_iter().filter(|run| !run.is_empty()).map(|run| run.join(" ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_from_descriptions() {
        for (subject, names) in [
            ("Ann Lee", &["Ann Lee"][..]),
            ("Paris, Texas", &["Paris", "Texas"]),
            ("When was the founder of General Motors in Detroit born", &["General Motors", "Detroit"]),
            ("the answer to what nobody ever knew before", &["the answer to what nobody ever knew before"]),
        ] {
            assert_eq!(TeaRagVoice.entities(subject), names, "{subject}");
        }
    }
}
