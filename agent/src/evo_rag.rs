//! EVO-RAG ("Curriculum-Guided Reinforcement Learning for Efficient Multi-Hop Retrieval-Augmented Generation"): besides
//! searching and answering, a policy may withdraw a search, and may refuse to answer.
//!
//! The paper defines the four actions (§3.2), at most twenty steps (§3.6), and its retriever: BM25 and vectors, fused
//! by reciprocal ranks (§4.1). Here the vectors are those of the index (MiniLM) instead of bge-base-en-v1.5's, and BM25
//! is tantivy's (1.2, 0.75) instead of pyserini's (0.9, 0.4). **Everything else is our choice**, because neither a
//! program nor a prompt is published:
//!
//! * **Syntax**: a thought, then one of the pairs of tags below. The first complete pair of a turn is its action.
//! * **Backtracking** withdraws the last search that was not withdrawn yet, because the paper does not say how far it
//!   goes. The policy is told that the search no longer counts. Its evidence stays in sight, or leaves it with
//!   [`Backtrack::Remove`](crate::Backtrack::Remove). Withdrawn evidence is neither cited nor counted as found.
//! * **A turn without an action** gets an error message and costs a step, as in Search-R1's loop.
//! * **Three passages per search.** RAG-Gym, whose environment the paper uses, has 32: more than a small model reads.

use waymark_index::{Ranking, SearchOptions};

use super::action::{Action, ActionOutcome, PolicySearch};
use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{AllowedActions, Guide, GuideState, QueryTags, ThoughtStart};
use super::protocol::{Injected, Protocol, ProtocolPrompt, ReadingRule};
use super::retrieval::{Format, Retrieval};
use super::scanner::overlap;
use super::segment::{SegmentKind, Tag, Tags};
use super::tag;
use super::training_protocol::TrainingProtocol;

/// The prompt; the question follows.
const INSTRUCTION: &str =
    "Answer the given question. Conduct reasoning inside <think> and </think> first every time you \
get new information. After reasoning, take exactly one action:
- <search> query </search> asks a search engine for one thing. It returns passages between <information> and \
</information>.
- <backtrack></backtrack> withdraws your last search, if it led nowhere: what it found does not count any more.
- <answer> and </answer> enclose the answer, without detailed illustrations, and end the task.
- <refuse> and </refuse> enclose why no answer can be given, if what can be found does not hold one, and end the task.
Question: ";

/// Placeholder for a query in the prompt.
const QUERY: &str = "query";

/// Reply to a turn without an action.
const INVALID: &str = "\nMy previous action is invalid. After my thoughts I should write exactly one of <search>, \
                       <backtrack>, <answer> and <refuse>, and close it. Let me try again.\n";

const SEARCH: (&str, &str) = ("<search>", "</search>");
const BACKTRACK: (&str, &str) = ("<backtrack>", "</backtrack>");
const ANSWER: (&str, &str) = ("<answer>", "</answer>");
const REFUSE: (&str, &str) = ("<refuse>", "</refuse>");

const STOPS: &[&str] = &[SEARCH.1, BACKTRACK.1, ANSWER.1, REFUSE.1];

static TAGS: Tags = Tags {
    outside: SegmentKind::Text,
    begins: SegmentKind::Text,
    pairs: &[
        Tag { kind: SegmentKind::Think, open: "<think>", close: "</think>" },
        Tag { kind: SegmentKind::Query, open: SEARCH.0, close: SEARCH.1 },
        Tag { kind: SegmentKind::Answer, open: ANSWER.0, close: ANSWER.1 },
        Tag { kind: SegmentKind::Refusal, open: REFUSE.0, close: REFUSE.1 },
        Tag { kind: SegmentKind::Text, open: BACKTRACK.0, close: BACKTRACK.1 },
        Tag { kind: SegmentKind::Text, open: "<information>", close: "</information>" },
    ],
    names: &["think", "search", "backtrack", "answer", "refuse", "information"],
    labels: &[],
    headers: &[tag::DOCUMENT],
    trims: true,
};

/// The protocol; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvoRag;

impl Protocol for EvoRag {
    fn name(&self) -> &'static str {
        "evo-rag"
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt {
        let question = conversation.question();
        let instruction =
            if guided { tag::without_example(INSTRUCTION, QUERY, "", question) } else { INSTRUCTION.into() };
        ProtocolPrompt::Chat(conversation.with_question(format!("{instruction}{question}\n")))
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        STOPS
    }

    /// Returns the action of the first complete pair of tags. A lenient reading also accepts a refusal without its
    /// closing tag.
    fn parse(&self, turn: &str, reading: ReadingRule) -> Action {
        let pair = |(open, close)| tag::between(turn, open, close);
        let all = [pair(SEARCH), pair(BACKTRACK), pair(ANSWER), pair(REFUSE)].into_iter().enumerate();
        let first = all.filter_map(|(which, found)| found.map(|(at, text)| (at, which, text.trim()))).min();
        match first {
            Some((_, 0, query)) => Action::Search(PolicySearch::plain(query)),
            Some((_, 1, _)) => Action::Backtrack,
            Some((_, 2, text)) => Action::Answer { text: text.to_owned() },
            Some((_, _, text)) => Action::Refuse { text: text.to_owned() },
            None => match unclosed(turn).filter(|_| reading.lenient()) {
                Some(text) => Action::Refuse { text: text.to_owned() },
                None => Action::Invalid,
            },
        }
    }

    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected> {
        let told = match outcome {
            ActionOutcome::Invalid(_) => return vec![Injected::frame(INVALID)],
            ActionOutcome::Withdrawn(Some(query)) => {
                format!("The search \"{query}\" is withdrawn. What it found does not count any more.")
            }
            ActionOutcome::Withdrawn(None) => "There is no search that could be withdrawn.".to_owned(),
            ActionOutcome::Evidence(_) | ActionOutcome::Failed(_) => return tag::observation(outcome, format, ""),
        };
        vec![Injected::frame("\n\n<information>"), Injected::retrieved(told), Injected::frame("</information>\n\n")]
    }

    /// Returns T = 20 steps, including the one that ends an episode, with room for that many short turns.
    fn budget(&self) -> Budget {
        Budget { turns: 19, sampled_tokens: 20 * 250, context_tokens: 16_384, ..Budget::default() }
    }

    /// Returns passage search with BM25 and vectors, fused.
    fn retrieval(&self) -> Retrieval {
        Retrieval::with(SearchOptions { ranking: Some(Ranking::Fused), ..SearchOptions::default() })
    }

    fn force_answer(&self, writing: SegmentKind) -> Option<String> {
        Some(tag::force_answer(writing))
    }

    /// Offers backtracking only after a search without results, and refusing only if no search had results, because an
    /// untrained policy would choose either at random.
    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        let query = QueryTags { open: SEARCH.0, close: SEARCH.1 };
        let mut guide = Guide::turn(offer, query, &[], ThoughtStart::Unopened);
        if offer.withdraw {
            guide =
                guide.with_branch(BACKTRACK.0, GuideState::Force { text: BACKTRACK.1.to_owned(), next: Guide::END });
        }
        if offer.refuse {
            let close = REFUSE.1;
            let limit = offer.answer_tokens;
            let next = Guide::END;
            guide = guide.with_branch(REFUSE.0, GuideState::Free { close, limit, pause: "\n", eos: true, next });
        }
        Some(guide)
    }

    fn training(&self) -> Option<&dyn TrainingProtocol> {
        Some(self)
    }
}

impl TrainingProtocol for EvoRag {
    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        let ends = STOPS.iter().filter_map(|stop| turn.find(stop).map(|at| at + stop.len()));
        &turn[..ends.min().unwrap_or(turn.len())]
    }
}

/// Returns the stripped text of a refusal in which the turn breaks off. A refusal tag inside a thought, or before other
/// tags, opens no refusal.
fn unclosed(turn: &str) -> Option<&str> {
    let (before, text) = turn.split_once(REFUSE.0)?;
    // `None` is less than any position, so a thought that was opened and not closed counts.
    let thinks = before.rfind("<think>") > before.rfind("</think>");
    let tagged = TAGS.pairs.iter().any(|tag| text.contains(tag.open) || text.contains(tag.close));
    // A token limit may cut the closing tag.
    let text = &text[..text.len() - overlap(text, REFUSE.1)];
    (!thinks && !tagged).then(|| text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Action {
        Action::Answer { text: text.to_owned() }
    }

    fn refuse(text: &str) -> Action {
        Action::Refuse { text: text.to_owned() }
    }

    fn search(query: &str) -> Action {
        Action::Search(PolicySearch::plain(query))
    }

    #[test]
    fn the_first_complete_pair_is_the_action() {
        for (turn, strict, lenient) in [
            ("<think>a</think>\n<search> b </search>", search("b"), None),
            ("<think>a</think>\n<backtrack></backtrack>", Action::Backtrack, None),
            ("<backtrack> it led nowhere </backtrack>", Action::Backtrack, None),
            ("<answer> b </answer>", answer("b"), None),
            ("<refuse> b </refuse>", refuse("b"), None),
            ("<refuse></refuse>", refuse(""), None),
            ("<refuse>a</refuse><answer>b</answer>", refuse("a"), None),
            ("<answer>a</answer><refuse>b</refuse>", answer("a"), None),
            ("<search>a <backtrack></backtrack>", Action::Backtrack, None),
            ("<refuse>a <search>b</search>", search("b"), None),
            ("<refuse> a ", Action::Invalid, Some(refuse("a"))),
            ("<think>b</think><refuse> a </ref", Action::Invalid, Some(refuse("a"))),
            ("<think>Should I <refuse>? No, I search.</think>", Action::Invalid, None),
            ("<think>Should I <refuse>? No", Action::Invalid, None),
            ("<refuse>a <search>b", Action::Invalid, None),
            ("<refuse>a</answer>", Action::Invalid, None),
            ("<backtrack>", Action::Invalid, None),
            ("<backtrack/>", Action::Invalid, None),
            ("</refuse><refuse", Action::Invalid, None),
            ("", Action::Invalid, None),
        ] {
            assert_eq!(EvoRag.parse(turn, ReadingRule::First), strict, "{turn}");
            assert_eq!(EvoRag.parse(turn, ReadingRule::SearchFirst), strict, "{turn}");
            assert_eq!(EvoRag.parse(turn, ReadingRule::Lenient), lenient.unwrap_or(strict), "{turn}");
        }
    }

    #[test]
    fn a_turn_is_cut_behind_its_first_closing_tag() {
        for (turn, kept) in [
            ("<backtrack></backtrack> <search>a</search>", "<backtrack></backtrack>"),
            ("a</refuse></answer>", "a</refuse>"),
            ("<search>a", "<search>a"),
        ] {
            assert_eq!(EvoRag.cut(turn), kept);
        }
    }

    #[test]
    fn a_refusal_is_a_kind_of_its_own() {
        let turn = "<think>a</think><refuse> b </refuse>";
        let spans: Vec<(SegmentKind, &str)> =
            EvoRag.spans(turn).into_iter().map(|s| (s.kind, &turn[s.range])).collect();
        assert_eq!(spans, [(SegmentKind::Think, "a"), (SegmentKind::Refusal, " b ")]);
    }

    #[test]
    fn what_is_withdrawn_is_named() {
        let told = |outcome| {
            let parts = EvoRag.observation(&outcome, Format::Evaluation);
            parts.iter().map(Injected::text).collect::<String>()
        };
        let withdrawn = "\n\n<information>The search \"x\" is withdrawn. What it found does not count any \
                         more.</information>\n\n";
        assert_eq!(told(ActionOutcome::Withdrawn(Some("x"))), withdrawn);
        assert!(told(ActionOutcome::Withdrawn(None)).contains("no search"));
        assert!(told(ActionOutcome::Invalid("x")).contains("<refuse>"));
    }

    #[test]
    fn only_an_unguided_prompt_says_query() {
        let text = |guided| match EvoRag.prompt(&Conversation::new("Who\nis it?"), guided) {
            ProtocolPrompt::Chat(messages) => messages[0].content.clone(),
            ProtocolPrompt::Raw(_) => unreachable!("it is a chat"),
        };
        assert!(text(false).contains("<search> query </search>") && text(false).ends_with("Question: Who\nis it?\n"));
        assert!(text(true).contains("<search> Who is it? </search>") && !text(true).contains(QUERY));
    }

    #[test]
    fn a_guide_offers_what_can_be_done() {
        let choices = |offer: AllowedActions| {
            let guide = EvoRag.guide(&offer).unwrap_or(Guide { states: Vec::new() });
            let GuideState::Choose { branches } = &guide.states[3] else { unreachable!("it chooses there") };
            assert!(branches.iter().all(|(_, next)| *next < guide.states.len()));
            branches.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>()
        };
        let first = AllowedActions { search: true, ..AllowedActions::default() };
        assert_eq!(choices(first.clone()), ["<search>"]);
        let later = AllowedActions { informed: true, answer: true, withdraw: true, refuse: true, ..first };
        assert_eq!(choices(later.clone()), ["<search>", "<answer>", "<backtrack>", "<refuse>"]);
        let last = AllowedActions { search: false, withdraw: false, ..later };
        assert_eq!(choices(last), ["<answer>", "<refuse>"]);
    }
}
