//! RouteRAG (arXiv 2512.09487): searches name their mode, `[passage]`, `[graph]` or both.

use waymark_index::{Mode, Ranking, SearchOptions};

use super::action::{Action, ActionOutcome, PolicySearch};
use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{AllowedActions, Guide};
use super::protocol::{Injected, ModePrefix, Protocol, ProtocolPrompt, ReadingRule};
use super::retrieval::{Format, Retrieval};
use super::segment::{SegmentKind, Tags};
use super::tag;
use super::training_protocol::TrainingProtocol;

/// The prompt of Table 6 of the paper, with the line breaks of the released training data; the question follows.
const INSTRUCTION: &str = "Answer the given question. You must conduct reasoning inside <think> and </think> first \
every time you get new information. After reasoning, if you find you lack some knowledge, you can call a search engine \
using the following strict format:
1. You MUST first decide which retrieval mode to use (both modes will return relevant documents, but use different \
retrieval methods):
   - Use [passage] to find documents using semantic similarity-based dense retrieval
   - Use [graph] to find documents through graph-based retrieval, which performs retrieval on a structured knowledge \
graph constructed from documents using fact ranking and graph reasoning
   - You can combine them as [graph][passage] to get documents from both retrieval methods
2. Then formulate your specific search query based on what information you need
3. Finally, wrap everything in <search> and </search> tags
For example:
- Using dense retrieval: <search> [passage] the capital of France </search>
- Using graph-based retrieval: <search> [graph] the capital of France </search>
- Using both methods: <search> [graph][passage] the capital of France </search>
The search results (relevant documents) will be returned between <information> and </information> tags. You can search \
as many times as you want. If you find no further external knowledge needed, you can directly provide the answer inside \
<answer> and </answer>, without detailed illustrations. For example, <answer> Paris </answer>. Question: ";

/// Query of the prompt's examples.
const QUERY: &str = "the capital of France";

/// Example of an answer in the prompt.
const ANSWER: &str = " For example, <answer> Paris </answer>.";

/// Markers of modes in a query.
const MARKERS: [&str; 2] = ["[passage]", "[graph]"];

/// The protocol; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteRag;

impl Protocol for RouteRag {
    fn name(&self) -> &'static str {
        "routerag"
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt {
        let question = conversation.question();
        let instruction =
            if guided { tag::without_example(INSTRUCTION, QUERY, ANSWER, question) } else { INSTRUCTION.into() };
        ProtocolPrompt::Chat(conversation.with_question(format!("{instruction}{question}\n")))
    }

    fn tags(&self) -> &'static Tags {
        &tag::TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        tag::STOPS
    }

    fn parse(&self, turn: &str, reading: ReadingRule) -> Action {
        tag::parse(turn, reading, request)
    }

    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected> {
        tag::observation(outcome, format, " ")
    }

    fn budget(&self) -> Budget {
        Budget::default()
    }

    /// Returns dense search for `[passage]` (§3.1.2) and for queries without a mode.
    fn retrieval(&self) -> Retrieval {
        Retrieval::with(SearchOptions { ranking: Some(Ranking::Dense), ..SearchOptions::default() })
    }

    fn mode_prefix(&self, mode: Mode) -> Option<ModePrefix> {
        let marker = match mode {
            Mode::Passage => " [passage]",
            Mode::Graph => " [graph]",
            Mode::Hybrid => " [graph][passage]",
            Mode::Triples | Mode::Kag | Mode::Hypergraph => return None,
        };
        Some(ModePrefix { opening: "<search>", marker })
    }

    fn force_answer(&self, writing: SegmentKind) -> Option<String> {
        Some(tag::force_answer(writing))
    }

    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        let modes: Vec<&str> = offer.modes.iter().filter_map(|&mode| marker(mode)).collect();
        Some(tag::guide(offer, &modes))
    }

    fn training(&self) -> Option<&dyn TrainingProtocol> {
        Some(self)
    }
}

impl TrainingProtocol for RouteRag {
    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        tag::cut(turn)
    }

    /// Returns the training format: the reference's `generation.py` strips evidence.
    fn format(&self) -> Option<Format> {
        Some(Format::Training)
    }

    /// Returns `true`: the reference's `generation.py` cuts a long block at its end.
    fn cuts_frame(&self) -> bool {
        true
    }
}

/// Returns the marker of a mode in a query. The hybrid mode has both markers, in the order of the prompt. `None` for
/// modes that the protocol does not know.
fn marker(mode: Mode) -> Option<&'static str> {
    match mode {
        Mode::Passage => Some("[passage]"),
        Mode::Graph => Some("[graph]"),
        Mode::Hybrid => Some("[graph][passage]"),
        Mode::Triples | Mode::Kag | Mode::Hypergraph => None,
    }
}

/// Parses a query with its modes, which may occur anywhere in it: removes them and strips the rest (RouteRAG's
/// `RouteRAG.search`).
pub fn request(written: &str) -> PolicySearch {
    let mode = match MARKERS.map(|marker| written.contains(marker)) {
        [true, true] => Some(Mode::Hybrid),
        [true, false] => Some(Mode::Passage),
        [false, true] => Some(Mode::Graph),
        [false, false] => None,
    };
    let query = without_markers(written).trim().to_owned();
    PolicySearch { query, mode, ..PolicySearch::plain(written) }
}

/// Removes the markers of modes in one pass: a marker that only the removal of another one joins stays.
fn without_markers(written: &str) -> String {
    let mut kept = String::with_capacity(written.len());
    let mut rest = written;
    while let Some(at) = rest.find('[') {
        let (before, from) = rest.split_at(at);
        kept.push_str(before);
        rest = match MARKERS.into_iter().find_map(|marker| from.strip_prefix(marker)) {
            Some(after) => after,
            // A bracket that begins no marker is text.
            None => {
                kept.push('[');
                &from[1..]
            }
        };
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_stand_anywhere() {
        for (written, query, mode) in [
            ("[graph] Superstore creator", "Superstore creator", Some(Mode::Graph)),
            ("the capital [passage] of France", "the capital  of France", Some(Mode::Passage)),
            ("[graph][passage]x", "x", Some(Mode::Hybrid)),
            ("x [passage] [passage][graph]", "x", Some(Mode::Hybrid)),
            ("[Graph] x", "[Graph] x", None),
            ("[gr[passage]aph]", "[graph]", Some(Mode::Passage)),
            ("[[graph] \u{fc} [x]", "[ \u{fc} [x]", Some(Mode::Graph)),
            ("[passage]", "", Some(Mode::Passage)),
            ("", "", None),
        ] {
            assert_eq!(
                request(written),
                PolicySearch { query: query.into(), mode, ..PolicySearch::plain(written) },
                "{written}"
            );
        }
    }

    #[test]
    fn the_prompt_is_one_user_message_of_the_published_length() {
        let ProtocolPrompt::Chat(messages) = RouteRag.prompt(&Conversation::new("Who?"), false) else { unreachable!() };
        assert_eq!(messages.len(), 1);
        assert!(messages[0].content.ends_with("<answer> Paris </answer>. Question: Who?\n"));
        let ProtocolPrompt::Chat(guided) = RouteRag.prompt(&Conversation::new("Who\nis?"), true) else {
            unreachable!()
        };
        assert!(guided[0].content.contains("<search> [graph][passage] Who is? </search>"));
        assert!(!guided[0].content.contains("France") && !guided[0].content.contains("Paris"));
        // spec: lengths 1,495 to 2,062 characters over the training questions.
        assert!((1440..1495).contains(&INSTRUCTION.chars().count()), "{}", INSTRUCTION.chars().count());
    }
}
