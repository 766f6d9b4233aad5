//! Search-R1 (arXiv 2503.09516), on which RouteRAG builds: a single kind of search.

use waymark_index::{Ranking, SearchOptions};

use super::action::{Action, ActionOutcome, PolicySearch};
use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{AllowedActions, Guide};
use super::protocol::{Injected, Protocol, ProtocolPrompt, ReadingRule};
use super::retrieval::{Format, Retrieval};
use super::segment::{SegmentKind, Tags};
use super::tag;
use super::training_protocol::TrainingProtocol;

/// The prompt of the released training data ("your want" is theirs); the question follows.
const INSTRUCTION: &str = "Answer the given question. You must conduct reasoning inside <think> and </think> first \
every time you get new information. After reasoning, if you find you lack some knowledge, you can call a search engine \
by <search> query </search> and it will return the top searched results between <information> and </information>. You \
can search as many times as your want. If you find no further external knowledge needed, you can directly provide the \
answer inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. \
Question: ";

/// Placeholder for a query in the prompt.
const QUERY: &str = "query";

/// Example of an answer in the prompt.
const ANSWER: &str = " For example, <answer> Beijing </answer>.";

/// The protocol; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SearchR1;

impl Protocol for SearchR1 {
    fn name(&self) -> &'static str {
        "search-r1"
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt {
        let question = conversation.question().trim();
        // Search-R1 adds the question mark to its questions (`nq_search.py`).
        let mark = if question.ends_with('?') { "" } else { "?" };
        let instruction =
            if guided { tag::without_example(INSTRUCTION, QUERY, ANSWER, question) } else { INSTRUCTION.into() };
        ProtocolPrompt::Chat(conversation.with_question(format!("{instruction}{question}{mark}\n")))
    }

    fn tags(&self) -> &'static Tags {
        &tag::TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        tag::STOPS
    }

    fn parse(&self, turn: &str, reading: ReadingRule) -> Action {
        tag::parse(turn, reading, |written| PolicySearch::plain(written))
    }

    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected> {
        tag::observation(outcome, format, "")
    }

    fn budget(&self) -> Budget {
        Budget::default()
    }

    /// Returns dense search, as Search-R1's retrieval server performs with its published embedder.
    fn retrieval(&self) -> Retrieval {
        Retrieval::with(SearchOptions { ranking: Some(Ranking::Dense), ..SearchOptions::default() })
    }

    fn force_answer(&self, writing: SegmentKind) -> Option<String> {
        Some(tag::force_answer(writing))
    }

    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        Some(tag::guide(offer, &[]))
    }

    fn training(&self) -> Option<&dyn TrainingProtocol> {
        Some(self)
    }
}

impl TrainingProtocol for SearchR1 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_question_mark_is_added() {
        for (question, end) in [("Who wrote Faust", "Who wrote Faust?\n"), ("Who?", "Question: Who?\n")] {
            let ProtocolPrompt::Chat(messages) = SearchR1.prompt(&Conversation::new(question), false) else {
                unreachable!()
            };
            assert!(messages[0].content.ends_with(end), "{}", messages[0].content);
        }
    }
}
