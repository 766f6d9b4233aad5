//! GraphRAG-R1's voice: a single thought, opened by the prompt, interrupted by the searches, and closed before the
//! answer.

use std::borrow::Cow;

use super::{SearchDraft, TurnDraft, Voice};
use crate::data::reading::{ShownEvidence, parse_triples};

/// Voice of GraphRAG-R1; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GraphragR1Voice;

impl GraphragR1Voice {
    fn turn(draft: &TurnDraft<'_>, action: &str) -> String {
        // The prompt ends with the tag that opens the thought; an observation ends with line breaks.
        let space = if draft.number == 1 { " " } else { "" };
        format!("{space}{}{action}", draft.thought())
    }
}

impl Voice for GraphragR1Voice {
    fn protocol(&self) -> &'static str {
        "graphrag-r1"
    }

    /// Removes quotation marks and joins words by single spaces, as the protocol does.
    fn query<'q>(&self, query: &'q str) -> Cow<'q, str> {
        Cow::Owned(query.replace('"', "").split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String {
        let query = self.query(search.query);
        GraphragR1Voice::turn(draft, &format!("\n<|begin_of_query|> {query} <|end_of_query|>"))
    }

    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String {
        GraphragR1Voice::turn(draft, &format!(" </think>\n<answer> {answer} </answer>"))
    }

    fn read<'o>(&self, observation: &'o str) -> Vec<ShownEvidence<'o>> {
        parse_triples(observation, "<|begin_of_documents|>\n", "<|end_of_documents|>")
    }
}
