//! Search-R1's voice: the same as RouteRAG's, but without markers, because Search-R1's queries name no mode.

use super::{SearchDraft, TurnDraft, Voice};
use crate::data::reading::{ShownEvidence, parse_passages};

/// Voice of Search-R1; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SearchR1Voice;

impl Voice for SearchR1Voice {
    fn protocol(&self) -> &'static str {
        "search-r1"
    }

    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String {
        draft.with_action(&format!("<search> {} </search>", search.query))
    }

    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String {
        draft.with_action(&format!("<answer> {answer} </answer>"))
    }

    fn read<'o>(&self, observation: &'o str) -> Vec<ShownEvidence<'o>> {
        parse_passages(observation, "</information>")
    }
}
