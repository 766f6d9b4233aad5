//! EVO-RAG's voice: a thought, then one of its four actions. If the answer cannot be found, the action is a refusal.

use super::{SearchDraft, TurnDraft, Voice};
use crate::data::reading::{ShownEvidence, parse_passages};

/// Voice of EVO-RAG; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvoRagVoice;

impl Voice for EvoRagVoice {
    fn protocol(&self) -> &'static str {
        "evo-rag"
    }

    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String {
        draft.with_action(&format!("<search> {} </search>", search.query))
    }

    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String {
        draft.with_action(&format!("<answer> {answer} </answer>"))
    }

    fn decline(&self, draft: &TurnDraft<'_>, statement: &str) -> String {
        draft.with_action(&format!("<refuse> {statement} </refuse>"))
    }

    fn backtrack(&self, draft: &TurnDraft<'_>) -> Option<String> {
        Some(draft.with_action("<backtrack></backtrack>"))
    }

    fn read<'o>(&self, observation: &'o str) -> Vec<ShownEvidence<'o>> {
        parse_passages(observation, "</information>")
    }
}
