//! Search-R1 (arXiv 2503.09516), RouteRAG's parent: one kind of search.

use waymark_index::{Mode, Ranking};

use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{Guide, Offer};
use super::policy::Retrieval;
use super::protocol::{Action, Format, Injected, Kind, Outcome, Prompt, Protocol, Reading, Request, Tags};
use super::tag;

/// The prompt of the released training data ("your want" is theirs). The question follows.
const INSTRUCTION: &str = "Answer the given question. You must conduct reasoning inside <think> and </think> first \
every time you get new information. After reasoning, if you find you lack some knowledge, you can call a search engine \
by <search> query </search> and it will return the top searched results between <information> and </information>. You \
can search as many times as your want. If you find no further external knowledge needed, you can directly provide the \
answer inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. \
Question: ";

/// What stands for a query in it.
const QUERY: &str = "query";

/// The example of an answer.
const ANSWER: &str = " For example, <answer> Beijing </answer>.";

/// The protocol; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SearchR1;

impl Protocol for SearchR1 {
    fn name(&self) -> &'static str {
        "search-r1"
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> Prompt {
        let question = conversation.question().trim();
        let mark = if question.ends_with('?') { "" } else { "?" };
        let instruction =
            if guided { tag::without_example(INSTRUCTION, QUERY, ANSWER, question) } else { INSTRUCTION.into() };
        Prompt::Chat(conversation.with_last(format!("{instruction}{question}{mark}\n")))
    }

    fn tags(&self) -> &'static Tags {
        &tag::TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        tag::STOPS
    }

    fn parse(&self, turn: &str, reading: Reading) -> Action {
        tag::parse(turn, reading, |written| Request::plain(written))
    }

    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        tag::cut(turn)
    }

    fn observation(&self, outcome: &Outcome<'_>, format: Format) -> Vec<Injected> {
        tag::observation(outcome, format, "")
    }

    fn budget(&self) -> Budget {
        Budget::default()
    }

    /// A dense search, as its server makes with the embedder it is published with.
    fn retrieval(&self) -> Retrieval {
        Retrieval { mode: Mode::Passage, ranking: Some(Ranking::Dense), ..Retrieval::default() }
    }

    /// Its `generation.py` strips what was found and cuts a block that is too long at its end.
    fn training_format(&self) -> Format {
        Format::Training
    }

    fn force_answer(&self, writing: Kind) -> Option<String> {
        Some(tag::force_answer(writing))
    }

    fn guide(&self, offer: &Offer) -> Option<Guide> {
        Some(tag::guide(offer, &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_question_mark_is_added() {
        for (question, end) in [("Who wrote Faust", "Who wrote Faust?\n"), ("Who?", "Question: Who?\n")] {
            let Prompt::Chat(messages) = SearchR1.prompt(&Conversation::new(question), false) else { unreachable!() };
            assert!(messages[0].content.ends_with(end), "{}", messages[0].content);
        }
    }
}
