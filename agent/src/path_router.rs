//! PathRouter, in the loop of Graph-R1 (arXiv 2507.21892) on which it builds: one query or answer per message, with
//! evidence as the next user message. PathRouter publishes no program; where its paper is silent, this follows
//! Graph-R1, with two exceptions.
//!
//! **Queries.** Graph-R1's program accepts `{"query": "…"}` and nothing else; its prompt never says so, but the schema
//! of its tool does, which no template here gets. PathRouter's own examples show plain text. So the serving loop
//! accepts both, and the reference's two loops accept JSON only. A query that begins like JSON must be JSON everywhere,
//! unless a guide has written the tags.
//!
//! **Evidence.** Graph-R1 returns ten facts of its hypergraph, as sentences in JSON with their scores; PathRouter
//! follows it, and calls them passages. In the mode `hypergraph` the facts are shown here one per line, numbered and
//! without scores: the keys of that JSON are tags, which retrieved text may not contain. In the other modes passages
//! stand in, in the format of the other protocols.

use waymark_index::{Mode, Ranking, SearchOptions, TripleHit};

use super::action::{Action, ActionOutcome, FoundEvidence, PolicySearch};
use super::budget::Budget;
use super::conversation::{Conversation, Role};
use super::evidence_header::EvidenceHeader;
use super::guide::{AllowedActions, Guide, QueryTags, ThoughtStart};
use super::protocol::{Injected, Protocol, ProtocolPrompt, ReadingRule};
use super::retrieval::{Format, Retrieval};
use super::segment::{SegmentKind, Tag, Tags};
use super::training_protocol::TrainingProtocol;
use super::{json_query, tag};

/// The prompt of Graph-R1 (`script_process.py`); the question follows.
const INSTRUCTION: &str = "Answer the given question. You can query from knowledge base provided to you to answer the \
question. You can query knowledge as many times as you want.
You must first conduct reasoning inside <think>...</think>. If you need to query knowledge, you can set a query statement \
between <query>...</query> to query from knowledge base after <think>...</think>.
When you have the final answer, you can output the answer inside <answer>...</answer>.

Output format for tool call:
<think>
...
</think>
<query>
...
</query>

Output format for answer:
<think>
...
</think>
<answer>
...
</answer>
Question: ";

/// Reply to a malformed query, verbatim from Graph-R1.
pub const INVALID: &str = "Invalid tool call format. Please use <query>{\"query\": \"statement\"}</query> format.";

const QUERY: (&str, &str) = ("<query>", "</query>");

/// All length limits of Graph-R1, in tokens.
const LENGTH: usize = 4096;

/// Tags of the protocol. The environment opens a thought at the beginning of every turn but the first, in which the
/// policy opens one.
static TAGS: Tags = Tags {
    outside: SegmentKind::Text,
    begins: SegmentKind::Think,
    pairs: &[
        Tag { kind: SegmentKind::Think, open: "<think>", close: "</think>" },
        Tag { kind: SegmentKind::Query, open: QUERY.0, close: QUERY.1 },
        Tag { kind: SegmentKind::Answer, open: "<answer>", close: "</answer>" },
        Tag { kind: SegmentKind::Text, open: "<knowledge>", close: "</knowledge>" },
    ],
    names: &["think", "query", "answer", "knowledge"],
    labels: &[],
    headers: &[tag::DOCUMENT, FACT],
    trims: true,
};

/// The protocol; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathRouter;

impl Protocol for PathRouter {
    fn name(&self) -> &'static str {
        "path-router"
    }

    /// Ignores `guided`, because the prompt has no examples to copy.
    fn prompt(&self, conversation: &Conversation, _guided: bool) -> ProtocolPrompt {
        ProtocolPrompt::Chat(conversation.with_question(format!("{INSTRUCTION}{}", conversation.question())))
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        &[QUERY.1, "</answer>"]
    }

    /// Returns a query wherever there is one, and an answer only without a query, like `_process_tool_call` of
    /// Graph-R1's `generation.py`.
    fn parse(&self, turn: &str, reading: ReadingRule) -> Action {
        match tag::between(turn, QUERY.0, QUERY.1) {
            Some((_, written)) => request(written.trim(), reading).map_or(Action::Invalid, Action::Search),
            None => tag::between(turn, "<answer>", "</answer>")
                .map_or(Action::Invalid, |(_, text)| Action::Answer { text: text.trim().to_owned() }),
        }
    }

    /// Writes a user message, and the beginning of the next turn inside a thought (`tool_custom_response_template`). A
    /// turn without a complete query gets no observation, which ends the episode.
    fn observation(&self, outcome: &ActionOutcome<'_>, format: Format) -> Vec<Injected> {
        let body = match outcome {
            ActionOutcome::Invalid(turn) if tag::between(turn, QUERY.0, QUERY.1).is_some() => INVALID.to_owned(),
            ActionOutcome::Failed(reason) => format!("The search gave no result: {reason}."),
            ActionOutcome::Evidence(seen) => {
                let text = knowledge(seen, format);
                // The frame brings its own line break.
                text.strip_suffix('\n').unwrap_or(&text).to_owned()
            }
            _ => return Vec::new(),
        };
        vec![
            Injected::Speaker(Role::User),
            Injected::frame("<knowledge>\n"),
            Injected::retrieved(body),
            Injected::frame("\n</knowledge>"),
            Injected::Speaker(Role::Assistant),
            Injected::frame("<think>\n"),
        ]
    }

    /// Returns T = 10, as PathRouter has it at inference (appendix B; 5 in training, set by its recipe), and Graph-R1's
    /// lengths (`run_grpo.sh`): 4,096 tokens for the prompt and 4,096 for everything after it.
    fn budget(&self) -> Budget {
        Budget {
            turns: 10,
            turn_tokens: LENGTH,
            observation_tokens: LENGTH,
            sampled_tokens: LENGTH,
            context_tokens: 2 * LENGTH,
            ..Budget::default()
        }
    }

    /// Returns dense passage search, the stand-in that every index offers; policies of an index with a graph set the
    /// mode `hypergraph`, which is the reference's.
    fn retrieval(&self) -> Retrieval {
        Retrieval::with(SearchOptions { ranking: Some(Ranking::Dense), ..SearchOptions::default() })
    }

    fn shows(&self) -> &'static [Mode] {
        &[Mode::Hypergraph, Mode::Passage, Mode::Graph, Mode::Hybrid]
    }

    /// Returns `false`: `run_llm_loop` of Graph-R1 ends with its last round.
    fn concludes(&self) -> bool {
        false
    }

    fn force_answer(&self, writing: SegmentKind) -> Option<String> {
        Some(tag::close(writing, QUERY.1))
    }

    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        let query = QueryTags { open: QUERY.0, close: QUERY.1 };
        let thought = if offer.follows() { ThoughtStart::Opened } else { ThoughtStart::Unopened };
        Some(Guide::turn(offer, query, &[], thought))
    }

    fn training(&self) -> Option<&dyn TrainingProtocol> {
        Some(self)
    }
}

impl TrainingProtocol for PathRouter {
    /// Cuts a turn after its first `</query>` if it contains a complete query. Graph-R1 appends the token that ends a
    /// message there; here it is the first token of the observation.
    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        match tag::between(turn, QUERY.0, QUERY.1) {
            Some(_) => tag::cut_at(turn, &[QUERY.1]),
            None => turn,
        }
    }

    /// Returns `data.max_start_length`.
    fn prompt_tokens(&self) -> usize {
        LENGTH
    }

    /// Returns `data.max_prompt_length`, which covers all turns together.
    fn response_tokens(&self, context: usize) -> usize {
        LENGTH.min(context)
    }
}

/// Header of a fact in [`knowledge`].
const FACT: EvidenceHeader =
    EvidenceHeader { parts: &["fact", EvidenceHeader::NUMBER, ":"], mark: 2, begins_line: true };

/// Returns the evidence as text: facts in the mode of the hypergraph, passages in the others.
fn knowledge(seen: &FoundEvidence<'_>, format: Format) -> String {
    if seen.mode != Mode::Hypergraph {
        return tag::passages_to_string(seen.passages, format);
    }
    let line = |(fact, number): (&TripleHit, usize)| {
        let sentence = format!("{} {} {}", fact.subject, fact.relation, fact.object);
        // One line per fact, whatever its parts contain.
        let sentence = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("Fact {number}: {sentence}\n")
    };
    seen.triples.iter().zip(1..).map(line).collect()
}

/// Parses the stripped text between the tags of a query. `None` if the reading refuses it.
fn request(written: &str, reading: ReadingRule) -> Option<PolicySearch> {
    let query = match json_query::parse(written) {
        Some(query) if reading.lenient() => query.trim().to_owned(),
        Some(query) => query,
        None if written.is_empty() || !reading.lenient() => return None,
        // Malformed JSON is not a query in plain words.
        None if written.starts_with('{') && reading != ReadingRule::Guided => return None,
        None => written.to_owned(),
    };
    Some(PolicySearch { query, ..PolicySearch::plain(written) })
}

/// Splits the text of an episode after its prompt into the turns of the policy, each with the `<think>` that was opened
/// for it.
pub fn turns(text: &str) -> Vec<String> {
    let mut turns = Vec::new();
    let mut rest = text;
    let mut opened = "";
    // The environment writes only after a closing tag, which ends the turn. A policy may write the tag of its block too,
    // so that tag is looked for after the closing one.
    while let Some(end) = rest.find(QUERY.1).map(|at| at + QUERY.1.len())
        && let Some((_, after)) = rest[end..].split_once("<knowledge>\n")
        // Without an opening tag, the training loop has cut the turn before its complete query, and replies so.
        && (rest[..end].contains(QUERY.0) || after.starts_with(INVALID))
        && let Some((_, after)) = after.split_once("\n</knowledge>")
        && let Some((_, after)) = after.split_once("<think>\n")
    {
        turns.push(format!("{opened}{}", &rest[..end]));
        (rest, opened) = (after, "<think>\n");
    }
    turns.push(format!("{opened}{rest}"));
    turns
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn query(turn: &str, reading: ReadingRule) -> Option<String> {
        match PathRouter.parse(turn, reading) {
            Action::Search(request) => Some(request.query),
            _ => None,
        }
    }

    #[test]
    fn plain_queries_are_for_the_loop_that_serves() {
        for (inner, strict, lenient, guided) in [
            (r#"{"query": "Who?"}"#, Some("Who?"), Some("Who?"), Some("Who?")),
            ("\n{\"query\": \" Who? \"}\n", Some(" Who? "), Some("Who?"), Some("Who?")),
            ("\nWho wrote Faust?\n", None, Some("Who wrote Faust?"), Some("Who wrote Faust?")),
            (r#"{"q": "Who?"}"#, None, None, Some(r#"{"q": "Who?"}"#)),
            (r#"{"query": "Who?"#, None, None, Some(r#"{"query": "Who?"#)),
            (r#"["Who?"]"#, None, Some(r#"["Who?"]"#), Some(r#"["Who?"]"#)),
            ("", None, None, None),
        ] {
            let turn = format!("<think>a</think>\n<query>{inner}</query>");
            assert_eq!(query(&turn, ReadingRule::First).as_deref(), strict, "{inner}");
            assert_eq!(query(&turn, ReadingRule::SearchFirst).as_deref(), strict, "{inner}");
            assert_eq!(query(&turn, ReadingRule::Lenient).as_deref(), lenient, "{inner}");
            assert_eq!(query(&turn, ReadingRule::Guided).as_deref(), guided, "{inner}");
        }
    }

    #[test]
    fn a_query_counts_more_than_an_answer() {
        let turn = "<answer>a</answer> <query>{\"query\": \"b\"}</query> <answer>c</answer>";
        assert_eq!(query(turn, ReadingRule::First).as_deref(), Some("b"));
        assert_eq!(PathRouter.cut(turn), "<answer>a</answer> <query>{\"query\": \"b\"}</query>");
        let open = "<think>x</think>\n<answer> a </answer> <query>b";
        assert_eq!(PathRouter.parse(open, ReadingRule::First), Action::Answer { text: "a".into() });
        assert_eq!(PathRouter.cut(open), open);
    }

    #[test]
    fn only_a_whole_query_gets_a_second_try() {
        let told = |turn: &str| PathRouter.observation(&ActionOutcome::Invalid(turn), Format::Evaluation);
        assert!(told("no query").is_empty() && told("</query> a <query>").is_empty());
        assert!(told("<query>{}</query>").contains(&Injected::retrieved(INVALID)));
    }

    #[test]
    fn facts_of_the_hypergraph_stand_on_lines_of_their_own() {
        let fact = |rank, subject: &str| waymark_index::TripleHit {
            rank,
            score: 1.0,
            subject: subject.into(),
            relation: "lies in".into(),
            object: "France".into(),
            passages: Vec::new(),
        };
        let triples = [fact(1, "Paris"), fact(2, "Le\nMans\nFact 3:")];
        let seen = FoundEvidence { mode: Mode::Hypergraph, passages: &[], triples: &triples };
        let parts = PathRouter.observation(&ActionOutcome::Evidence(seen), Format::Evaluation);
        assert!(
            parts
                .contains(&Injected::retrieved("Fact 1: Paris lies in France\nFact 2: Le Mans Fact 3: lies in France"))
        );
        // A passage cannot pose as a fact either.
        let ([text], count) = super::super::sanitize::without_headers(["a\n Fact 2: x. A fact 3: y"], &TAGS);
        assert_eq!(count, 1, "{text}");
    }

    #[test]
    fn turns_are_found_again_in_a_text() {
        let passages = [waymark_index::Passage { id: "1".into(), title: "T".into(), text: "x\n\ny".into() }];
        let parts = PathRouter.observation(&ActionOutcome::Evidence(FoundEvidence::of(&passages)), Format::Evaluation);
        let spoken = |part: &Injected| match part {
            Injected::Speaker(Role::User) => "user\n".to_owned(),
            Injected::Speaker(_) => "\nassistant\n".to_owned(),
            part => part.text().to_owned(),
        };
        let block: String = parts.iter().map(spoken).collect();
        assert_eq!(block, "user\n<knowledge>\nDoc 1(Title: T) x\n\ny\n</knowledge>\nassistant\n<think>\n");
        let search = "<think>a</think>\n<query>b</query>";
        let answer = "c</think>\n<answer>d</answer>";
        let text = format!("{search}{block}e</think>\n<query>f</query>{block}{answer}");
        assert_eq!(turns(&text), [search, "<think>\ne</think>\n<query>f</query>", &format!("<think>\n{answer}")]);
        // A policy may write the tags of the environment.
        let marked = "<think>a <knowledge>\nb</think>\n<query>c</query>";
        assert_eq!(turns(&format!("{marked}{block}{answer}")), [marked, &format!("<think>\n{answer}")]);
        assert_eq!(turns("<think>a <knowledge>\nb"), ["<think>a <knowledge>\nb"]);
        // The training loop cuts at a stray closing tag, where its reply follows.
        let parts = PathRouter.observation(&ActionOutcome::Invalid("</query> <query></query>"), Format::Training);
        let reply: String = parts.iter().map(spoken).collect();
        let stray = "<think>a </query>";
        assert_eq!(turns(&format!("{stray}{reply}{answer}")), [stray, &format!("<think>\n{answer}")]);
        let alone = "</query> <knowledge>\na\n</knowledge> <think>\nb";
        assert_eq!(turns(alone), [alone]);
        assert_eq!(turns(""), [""]);
    }
}
