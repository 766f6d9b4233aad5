//! EVO-RAG ("Curriculum-Guided Reinforcement Learning for Efficient Multi-Hop Retrieval-Augmented Generation"): beside
//! searching and answering a policy may go back on a search, and may refuse to answer.
//!
//! The paper has the four actions (§3.2), at most twenty steps (§3.6), and its retriever: BM25 and vectors, fused by reciprocal
//! ranks (§4.1). Here those are the vectors of the index (MiniLM), not bge-base-en-v1.5's, and tantivy's BM25 (1.2, 0.75), not
//! pyserini's (0.9, 0.4). **Everything else is ours**, as it publishes neither a program nor a prompt:
//!
//! * **Syntax**: a thought, then one of the pairs of tags below. A turn means the first complete pair in it.
//! * **Going back** withdraws the last search that stands, as the paper does not say how far one goes. Ids are only ever
//!   added to a sequence, so the evidence stays before the policy, and it is told that the search does not count any more.
//!   Nothing that was withdrawn is cited, or counts as what was found.
//! * **What asks for nothing** is told so and costs a step, as in Search-R1's loop.
//! * **Three passages a search.** RAG-Gym, whose environment the paper takes, has 32: more than a small model reads.

use waymark_index::{Mode, Ranking};

use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{Guide, Offer, State};
use super::policy::Retrieval;
use super::protocol::{Action, Format, Injected, Kind, Outcome, Prompt, Protocol, Reading, Request, Tag, Tags};
use super::scanner::overlap;
use super::tag;

/// The prompt. The question follows.
const INSTRUCTION: &str =
    "Answer the given question. Conduct reasoning inside <think> and </think> first every time you \
get new information. After reasoning, take exactly one action:
- <search> query </search> asks a search engine for one thing. It returns passages between <information> and \
</information>.
- <backtrack></backtrack> withdraws your last search, if it led nowhere: what it found does not count any more.
- <answer> and </answer> enclose the answer, without detailed illustrations, and end the task.
- <refuse> and </refuse> enclose why no answer can be given, if what can be found does not hold one, and end the task.
Question: ";

/// What stands for a query in it.
const QUERY: &str = "query";

/// What a turn without an action is told.
const INVALID: &str = "\nMy previous action is invalid. After my thoughts I should write exactly one of <search>, \
                       <backtrack>, <answer> and <refuse>, and close it. Let me try again.\n";

const SEARCH: (&str, &str) = ("<search>", "</search>");
const BACKTRACK: (&str, &str) = ("<backtrack>", "</backtrack>");
const ANSWER: (&str, &str) = ("<answer>", "</answer>");
const REFUSE: (&str, &str) = ("<refuse>", "</refuse>");

const STOPS: &[&str] = &[SEARCH.1, BACKTRACK.1, ANSWER.1, REFUSE.1];

static TAGS: Tags = Tags {
    outside: Kind::Text,
    begins: Kind::Text,
    pairs: &[
        Tag { kind: Kind::Think, open: "<think>", close: "</think>" },
        Tag { kind: Kind::Query, open: SEARCH.0, close: SEARCH.1 },
        Tag { kind: Kind::Answer, open: ANSWER.0, close: ANSWER.1 },
        Tag { kind: Kind::Refusal, open: REFUSE.0, close: REFUSE.1 },
        Tag { kind: Kind::Text, open: BACKTRACK.0, close: BACKTRACK.1 },
        Tag { kind: Kind::Text, open: "<information>", close: "</information>" },
    ],
    names: &["think", "search", "backtrack", "answer", "refuse", "information"],
    labels: &[],
    trims: true,
};

/// The protocol; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvoRag;

impl Protocol for EvoRag {
    fn name(&self) -> &'static str {
        "evo-rag"
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> Prompt {
        let question = conversation.question();
        let instruction =
            if guided { tag::without_example(INSTRUCTION, QUERY, "", question) } else { INSTRUCTION.into() };
        Prompt::Chat(conversation.with_last(format!("{instruction}{question}\n")))
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        STOPS
    }

    /// The first complete pair. A refusal that only lacks its end is one where it is clear what is meant.
    fn parse(&self, turn: &str, reading: Reading) -> Action {
        let pair = |(open, close)| tag::between(turn, open, close);
        let all = [pair(SEARCH), pair(BACKTRACK), pair(ANSWER), pair(REFUSE)].into_iter().enumerate();
        let first = all.filter_map(|(which, found)| found.map(|(at, text)| (at, which, text.trim()))).min();
        match first {
            Some((_, 0, query)) => Action::Search(Request::plain(query)),
            Some((_, 1, _)) => Action::Backtrack,
            Some((_, 2, text)) => Action::Answer { text: text.to_owned() },
            Some((_, _, text)) => Action::Refuse { text: text.to_owned() },
            None => match unclosed(turn).filter(|_| reading.lenient()) {
                Some(text) => Action::Refuse { text: text.to_owned() },
                None => Action::Invalid,
            },
        }
    }

    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        let ends = STOPS.iter().filter_map(|stop| turn.find(stop).map(|at| at + stop.len()));
        &turn[..ends.min().unwrap_or(turn.len())]
    }

    fn observation(&self, outcome: &Outcome<'_>, format: Format) -> Vec<Injected> {
        let told = match outcome {
            Outcome::Invalid(_) => return vec![Injected::frame(INVALID)],
            Outcome::Withdrawn(Some(query)) => {
                format!("The search \"{query}\" is withdrawn. What it found does not count any more.")
            }
            Outcome::Withdrawn(None) => "There is no search that could be withdrawn.".to_owned(),
            Outcome::Evidence(_) | Outcome::Failed(_) => return tag::observation(outcome, format, ""),
        };
        vec![Injected::frame("\n\n<information>"), Injected::retrieved(told), Injected::frame("</information>\n\n")]
    }

    /// T = 20 steps, the one that ends an episode among them, and room for that many short turns.
    fn budget(&self) -> Budget {
        Budget { turns: 19, sampled_tokens: 20 * 250, context_tokens: 16_384, ..Budget::default() }
    }

    /// BM25 and vectors, fused.
    fn retrieval(&self) -> Retrieval {
        Retrieval { mode: Mode::Passage, ranking: Some(Ranking::Fused), ..Retrieval::default() }
    }

    fn force_answer(&self, writing: Kind) -> Option<String> {
        Some(tag::force_answer(writing))
    }

    /// Going back is offered on a search that found nothing, and refusing where none did: whoever was never trained in it
    /// would choose either at random.
    fn guide(&self, offer: &Offer) -> Option<Guide> {
        let mut guide = Guide::turn(offer, SEARCH, &[], false);
        if offer.withdraw {
            guide = guide.or(BACKTRACK.0, State::Force { text: BACKTRACK.1.to_owned(), next: Guide::END });
        }
        if offer.refuse {
            let (close, limit, next) = (REFUSE.1, offer.answer_tokens, Guide::END);
            guide = guide.or(REFUSE.0, State::Free { close, limit, pause: "\n", eos: true, next });
        }
        Some(guide)
    }
}

/// The refusal that a turn breaks off in, stripped. A tag that is mentioned in a thought begins none, and neither does one
/// that other tags follow.
fn unclosed(turn: &str) -> Option<&str> {
    let (before, text) = turn.split_once(REFUSE.0)?;
    let thinks = before.rfind("<think>") > before.rfind("</think>");
    let tagged = TAGS.pairs.iter().any(|tag| text.contains(tag.open) || text.contains(tag.close));
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
        Action::Search(Request::plain(query))
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
            assert_eq!(EvoRag.parse(turn, Reading::First), strict, "{turn}");
            assert_eq!(EvoRag.parse(turn, Reading::SearchFirst), strict, "{turn}");
            assert_eq!(EvoRag.parse(turn, Reading::Lenient), lenient.unwrap_or(strict), "{turn}");
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
        let spans: Vec<(Kind, &str)> = EvoRag.spans(turn).into_iter().map(|s| (s.kind, &turn[s.range])).collect();
        assert_eq!(spans, [(Kind::Think, "a"), (Kind::Refusal, " b ")]);
    }

    #[test]
    fn what_is_withdrawn_is_named() {
        let told = |outcome| {
            let parts = EvoRag.observation(&outcome, Format::Evaluation);
            parts.iter().map(Injected::text).collect::<String>()
        };
        let withdrawn = "\n\n<information>The search \"x\" is withdrawn. What it found does not count any \
                         more.</information>\n\n";
        assert_eq!(told(Outcome::Withdrawn(Some("x"))), withdrawn);
        assert!(told(Outcome::Withdrawn(None)).contains("no search"));
        assert!(told(Outcome::Invalid("x")).contains("<refuse>"));
    }

    #[test]
    fn only_an_unguided_prompt_says_query() {
        let text = |guided| match EvoRag.prompt(&Conversation::new("Who\nis it?"), guided) {
            Prompt::Chat(messages) => messages[0].content.clone(),
            Prompt::Raw(_) => unreachable!("it is a chat"),
        };
        assert!(text(false).contains("<search> query </search>") && text(false).ends_with("Question: Who\nis it?\n"));
        assert!(text(true).contains("<search> Who is it? </search>") && !text(true).contains(QUERY));
    }

    #[test]
    fn a_guide_offers_what_can_be_done() {
        let choices = |offer: Offer| {
            let guide = EvoRag.guide(&offer).unwrap_or(Guide { states: Vec::new() });
            let State::Choose { branches } = &guide.states[3] else { unreachable!("it chooses there") };
            assert!(branches.iter().all(|(_, next)| *next < guide.states.len()));
            branches.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>()
        };
        let first = Offer { search: true, ..Offer::default() };
        assert_eq!(choices(first.clone()), ["<search>"]);
        let later = Offer { informed: true, answer: true, withdraw: true, refuse: true, ..first };
        assert_eq!(choices(later.clone()), ["<search>", "<answer>", "<backtrack>", "<refuse>"]);
        let last = Offer { search: false, withdraw: false, ..later };
        assert_eq!(choices(last), ["<answer>", "<refuse>"]);
    }
}
