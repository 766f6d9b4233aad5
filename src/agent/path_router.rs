//! PathRouter, in the loop of Graph-R1 (arXiv 2507.21892) that it follows: a query or an answer per message, evidence as
//! what the user says next. PathRouter publishes no program; what its paper leaves open is as in Graph-R1's, but for two
//! things.
//!
//! **Queries.** Graph-R1's program takes `{"query": "…"}` and nothing else; its prompt never says so, the schema of its tool
//! does, which no template here is given. PathRouter's own examples show plain text. So the loop that serves takes both, and
//! the reference's two loops take JSON alone. What begins like JSON is held to it everywhere, but where a guide has written
//! the tags.
//!
//! **Evidence.** Graph-R1 returns sentences of its hypergraph as JSON, PathRouter passages, in a form that it does not
//! print: here it is that of the other protocols.

use waymark_index::{Mode, Ranking};

use super::budget::Budget;
use super::conversation::{Conversation, Role};
use super::guide::{Guide, Offer};
use super::policy::Retrieval;
use super::protocol::{Action, Format, Injected, Kind, Outcome, Prompt, Protocol, Reading, Request, Tag, Tags};
use super::{statement, tag};

/// The prompt of Graph-R1 (`script_process.py`). The question follows.
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

/// What a query in the wrong form is told, word for word as Graph-R1 has it.
pub const INVALID: &str = "Invalid tool call format. Please use <query>{\"query\": \"statement\"}</query> format.";

const QUERY: (&str, &str) = ("<query>", "</query>");

/// Every length of Graph-R1, in tokens.
const LENGTH: usize = 4096;

/// Every turn but the first begins inside a thought, which the environment opens; in the first the policy opens one.
static TAGS: Tags = Tags {
    outside: Kind::Text,
    begins: Kind::Think,
    pairs: &[
        Tag { kind: Kind::Think, open: "<think>", close: "</think>" },
        Tag { kind: Kind::Query, open: QUERY.0, close: QUERY.1 },
        Tag { kind: Kind::Answer, open: "<answer>", close: "</answer>" },
        Tag { kind: Kind::Text, open: "<knowledge>", close: "</knowledge>" },
    ],
    names: &["think", "query", "answer", "knowledge"],
    labels: &[],
    trims: true,
};

/// The protocol; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathRouter;

impl Protocol for PathRouter {
    fn name(&self) -> &'static str {
        "path-router"
    }

    /// Nothing in it invites to be copied, so a guided policy gets the same.
    fn prompt(&self, conversation: &Conversation, _guided: bool) -> Prompt {
        Prompt::Chat(conversation.with_last(format!("{INSTRUCTION}{}", conversation.question())))
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        &[QUERY.1, "</answer>"]
    }

    /// A query wherever there is one; an answer only where there is none, as `_process_tool_call` of Graph-R1's
    /// `generation.py` has it.
    fn parse(&self, turn: &str, reading: Reading) -> Action {
        match tag::between(turn, QUERY.0, QUERY.1) {
            Some((_, written)) => request(written.trim(), reading).map_or(Action::Invalid, Action::Search),
            None => tag::between(turn, "<answer>", "</answer>")
                .map_or(Action::Invalid, |(_, text)| Action::Answer { text: text.trim().to_owned() }),
        }
    }

    /// Up to the first `</query>` where there is a whole query, else all. Graph-R1 writes the token that ends a message
    /// behind it; here that is the first of what the environment writes.
    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        match tag::between(turn, QUERY.0, QUERY.1) {
            Some(_) => tag::cut_at(turn, &[QUERY.1]),
            None => turn,
        }
    }

    /// A message of the user, and the beginning of the next turn inside a thought (`tool_custom_response_template`). To a
    /// turn without a whole query, nothing: the episode ends.
    fn observation(&self, outcome: &Outcome<'_>, format: Format) -> Vec<Injected> {
        let body = match outcome {
            Outcome::Invalid(turn) if tag::between(turn, QUERY.0, QUERY.1).is_none() => return Vec::new(),
            Outcome::Withdrawn(_) => return Vec::new(),
            Outcome::Invalid(_) => INVALID.to_owned(),
            Outcome::Failed(reason) => format!("The search gave no result: {reason}."),
            Outcome::Evidence(seen) => {
                let text = tag::passages_to_string(seen.passages, format);
                text.strip_suffix('\n').unwrap_or(&text).to_owned()
            }
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

    /// T = 10, as PathRouter has it at inference (appendix B; 5 in training, which is its recipe's to say), and Graph-R1's
    /// lengths (`run_grpo.sh`): 4,096 for the prompt and 4,096 for everything after it.
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

    /// `data.max_start_length`.
    fn prompt_tokens(&self) -> usize {
        LENGTH
    }

    /// `data.max_prompt_length`, of all turns together.
    fn response_tokens(&self, context: usize) -> usize {
        LENGTH.min(context)
    }

    /// Its queries name no mode. The reference searches its graph; dense search is what every index has.
    fn retrieval(&self) -> Retrieval {
        Retrieval { mode: Mode::Passage, ranking: Some(Ranking::Dense), ..Retrieval::default() }
    }

    /// `run_llm_loop` of Graph-R1 ends with its last round.
    fn concludes(&self) -> bool {
        false
    }

    fn force_answer(&self, writing: Kind) -> Option<String> {
        Some(tag::close(writing, QUERY.1))
    }

    fn guide(&self, offer: &Offer) -> Option<Guide> {
        Some(Guide::turn(offer, QUERY, &[], offer.follows()))
    }
}

/// Reads what stands between the tags of a query, stripped; `None` where it is refused.
fn request(written: &str, reading: Reading) -> Option<Request> {
    let query = match statement::read(written) {
        Some(query) if reading.lenient() => query.trim().to_owned(),
        Some(query) => query,
        None if written.is_empty() || !reading.lenient() => return None,
        None if written.starts_with('{') && reading != Reading::Guided => return None,
        None => written.to_owned(),
    };
    Some(Request { query, ..Request::plain(written) })
}

/// The turns of a policy, from the text of an episode after its prompt: each with the `<think>` that was opened for it.
pub fn turns(text: &str) -> Vec<String> {
    let (mut turns, mut rest, mut opened) = (Vec::new(), text, "");
    // What the environment says follows a query, and no policy writes on after one.
    while let Some((before, after)) = rest.split_once("<knowledge>\n")
        && before.contains(QUERY.1)
        && let Some((_, after)) = after.split_once("\n</knowledge>")
        && let Some((_, after)) = after.split_once("<think>\n")
    {
        turns.push(format!("{opened}{}", PathRouter.cut(before)));
        (rest, opened) = (after, "<think>\n");
    }
    turns.push(format!("{opened}{rest}"));
    turns
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::protocol::Seen;
    use super::*;

    fn query(turn: &str, reading: Reading) -> Option<String> {
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
            assert_eq!(query(&turn, Reading::First).as_deref(), strict, "{inner}");
            assert_eq!(query(&turn, Reading::SearchFirst).as_deref(), strict, "{inner}");
            assert_eq!(query(&turn, Reading::Lenient).as_deref(), lenient, "{inner}");
            assert_eq!(query(&turn, Reading::Guided).as_deref(), guided, "{inner}");
        }
    }

    #[test]
    fn a_query_counts_more_than_an_answer() {
        let turn = "<answer>a</answer> <query>{\"query\": \"b\"}</query> <answer>c</answer>";
        assert_eq!(query(turn, Reading::First).as_deref(), Some("b"));
        assert_eq!(PathRouter.cut(turn), "<answer>a</answer> <query>{\"query\": \"b\"}</query>");
        let open = "<think>x</think>\n<answer> a </answer> <query>b";
        assert_eq!(PathRouter.parse(open, Reading::First), Action::Answer { text: "a".into() });
        assert_eq!(PathRouter.cut(open), open);
    }

    #[test]
    fn only_a_whole_query_gets_a_second_try() {
        let told = |turn: &str| PathRouter.observation(&Outcome::Invalid(turn), Format::Evaluation);
        assert!(told("no query").is_empty() && told("</query> a <query>").is_empty());
        assert!(told("<query>{}</query>").contains(&Injected::retrieved(INVALID)));
    }

    #[test]
    fn turns_are_found_again_in_a_text() {
        let passages = [waymark_index::Passage { id: "1".into(), title: "T".into(), text: "x\n\ny".into() }];
        let parts = PathRouter.observation(&Outcome::Evidence(Seen::of(&passages)), Format::Evaluation);
        let spoken = |part: &Injected| match part {
            Injected::Speaker(Role::User) => "user\n".to_owned(),
            Injected::Speaker(_) => "\nassistant\n".to_owned(),
            part => part.text().to_owned(),
        };
        let block: String = parts.iter().map(spoken).collect();
        assert_eq!(block, "user\n<knowledge>\nDoc 1(Title: T) x\n\ny\n</knowledge>\nassistant\n<think>\n");
        let (search, answer) = ("<think>a</think>\n<query>b</query>", "c</think>\n<answer>d</answer>");
        let text = format!("{search}{block}e</think>\n<query>f</query>{block}{answer}");
        assert_eq!(turns(&text), [search, "<think>\ne</think>\n<query>f</query>", &format!("<think>\n{answer}")]);
        assert_eq!(turns("<think>a <knowledge>\nb"), ["<think>a <knowledge>\nb"]);
        assert_eq!(turns(""), [""]);
    }
}
