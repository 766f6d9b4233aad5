//! RouteRAG's voice: one line of thought, then a query with the marker of its mode.

use waymark_index::Mode;

use super::{SearchDraft, TurnDraft, Voice};
use crate::data::reading::{ShownEvidence, parse_passages};

/// Voice of RouteRAG; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteRagVoice;

impl Voice for RouteRagVoice {
    fn protocol(&self) -> &'static str {
        "routerag"
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::Passage, Mode::Graph, Mode::Hybrid]
    }

    fn search(&self, draft: &TurnDraft<'_>, search: &SearchDraft<'_>) -> String {
        let marker = match search.mode {
            Mode::Graph => "[graph]",
            Mode::Hybrid => "[graph][passage]",
            // RouteRAG has no markers for the other modes, and the teacher never chooses them.
            Mode::Passage | Mode::Triples | Mode::Kag | Mode::Hypergraph => "[passage]",
        };
        draft.with_action(&format!("<search> {marker} {} </search>", search.query))
    }

    fn answer(&self, draft: &TurnDraft<'_>, answer: &str) -> String {
        draft.with_action(&format!("<answer> {answer} </answer>"))
    }

    fn read<'o>(&self, observation: &'o str) -> Vec<ShownEvidence<'o>> {
        parse_passages(observation, "</information>")
    }
}
