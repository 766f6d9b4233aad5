//! PathRouter's voice: a thought, then a query as JSON, each on lines of its own as in the prompt. The environment
//! opens the thought of every turn but the first. Queries are JSON because all loops accept it, while the reference's
//! two loops refuse plain text.

use serde_json::json;

use super::{SearchDraft, TurnDraft, Voice};
use crate::data::reading::{ShownEvidence, parse_facts, parse_passages};

/// Voice of PathRouter; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathRouterVoice;

/// Closing tag of the evidence.
const CLOSE: &str = "\n</knowledge>";

impl PathRouterVoice {
    fn turn(draft: &TurnDraft<'_>, action: &str) -> String {
        let open = if draft.number == 1 { "<think>\n" } else { "" };
        format!("{open}{}\n</think>\n{action}", draft.thought())
    }
}

impl Voice for PathRouterVoice {
    fn protocol(&self) -> &'static str {
        "path-router"
    }

    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String {
        // A space after the colon, as Python writes JSON.
        let query = json!(search.query);
        PathRouterVoice::turn(draft, &format!("<query>\n{{\"query\": {query}}}\n</query>"))
    }

    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String {
        PathRouterVoice::turn(draft, &format!("<answer>\n{answer}\n</answer>"))
    }

    fn read<'o>(&self, observation: &'o str) -> Vec<ShownEvidence<'o>> {
        // The environment shows facts in the mode of the hypergraph, and passages in all others.
        let facts = parse_facts(observation, CLOSE);
        if facts.is_empty() { parse_passages(observation, CLOSE) } else { facts }
    }
}
