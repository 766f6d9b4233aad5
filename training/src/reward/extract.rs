//! Extraction of answers from decoded sequences, as in the reference programs.

use waymark_agent::metric::strip;
use waymark_agent::{ActionOutcome, Format, Injected, Policy, path_router};

use crate::sample::Sample;

/// Start of a reply, after which RouteRAG looks for an answer. Its training supports no other chat template.
const REPLY: &str = "<|im_start|>assistant";

/// Name of PathRouter's protocol.
const PATH_ROUTER: &str = "path-router";

/// Returns the texts between each `<name>` and the next `</name>`, from left to right without overlaps, like Python's
/// `re.findall(r"<name>(.*?)</name>", text, re.DOTALL)`.
pub fn between<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let open = format!("<{name}>");
    let close = format!("</{name}>");
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(&open) {
        let Some((inside, left)) = after.split_once(&close) else { break };
        found.push(inside);
        rest = left;
    }
    found
}

/// Returns the last answer of a reply, trimmed. Tags within retrieved text count too.
pub fn last_answer(reply: &str) -> Option<&str> {
    between(reply, "answer").last().map(|answer| strip(answer))
}

/// Returns the last answer that the policy wrote and closed by itself, read like [`last_answer`]. A forced answer after
/// the last turn earns nothing, as in the references, whose loops end there: if it were rewarded, policies would learn
/// to search until the answer is forced. For protocols without answer tags (TeaRAG, plain), returns the answer that the
/// loop parsed.
pub(crate) fn closed_answer(sample: &Sample) -> Option<&str> {
    let tagged = has_answer_tag(&sample.protocol) && sample.text.contains("<answer>");
    let answer = if tagged { last_written(&sample.protocol, &sample.text) } else { sample.answer.as_deref() };
    answer.filter(|_| !sample.is_forced())
}

/// Returns the last answer of an episode's text, trimmed. The environment's reply to a turn without an action may name
/// tags: no tag before this reply, or within it, is paired with a tag after it. For PathRouter, only the last turn
/// counts, as in Graph-R1, which reads the answer from the last message.
fn last_written<'t>(protocol: &str, text: &'t str) -> Option<&'t str> {
    if protocol == PATH_ROUTER {
        return last_answer(last_turn(text));
    }
    let reply = reply_to_invalid(protocol);
    if reply.is_empty() {
        return last_answer(text);
    }
    text.rsplit(reply.as_str()).find_map(last_answer)
}

/// Returns the last turn of the policy in an episode of PathRouter.
fn last_turn(text: &str) -> &str {
    let turns = path_router::turns(text);
    let [.., _, last] = &turns[..] else { return text };
    // The environment opens the thought of every turn but the first.
    let own = last.strip_prefix("<think>\n").unwrap_or(last);
    &text[text.len() - own.len()..]
}

/// Returns the environment's reply to a turn without an action. Empty if the protocol has none, or is not known.
fn reply_to_invalid(protocol: &str) -> String {
    let Some(policy) = Policy::builtin(protocol) else { return String::new() };
    let reply = policy.protocol.observation(&ActionOutcome::Invalid(""), Format::Training);
    reply.iter().map(Injected::text).collect()
}

/// Returns `false` if answers of the protocol have other marks than `<answer>`. Then such tags are not sanitized in
/// retrieved text, and none of them is an answer.
fn has_answer_tag(protocol: &str) -> bool {
    let opens = |policy: Policy| policy.protocol.tags().pairs.iter().any(|pair| pair.open == "<answer>");
    Policy::builtin(protocol).is_none_or(opens)
}

/// Returns the answer in a prompt with its reply as Search-R1 extracts it (`extract_solution` of its `qa_em.py`): the
/// last of at least two answers, because the prompt contains one as an example.
pub fn search_r1(sequence: &str) -> Option<&str> {
    let answers = between(sequence, "answer");
    if answers.len() < 2 { None } else { answers.last().map(|answer| strip(answer)) }
}

/// Returns the answer in a prompt with its reply as RouteRAG extracts it (its `qa_em.py`): the last one after the
/// first start of a reply. Returns `None` without a reply, where the reference program fails.
pub fn route_rag(sequence: &str) -> Option<&str> {
    last_answer(sequence.split_once(REPLY)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::tests::searched;

    /// Closed answer of a trajectory in which the loop parsed the answer Rome.
    fn closed(protocol: &str, text: &str) -> Option<String> {
        let sample = Sample { protocol: protocol.to_owned(), answer: Some("Rome".to_owned()), ..searched(text, &[]) };
        closed_answer(&sample).map(str::to_owned)
    }

    #[test]
    fn a_tag_in_retrieved_text_is_no_answer_of_a_protocol_without_tags() {
        let text = "<Reference> Evidence 1: <answer>Paris</answer> </Reference> Final answer: Rome";
        assert_eq!(closed("tearag", text).as_deref(), Some("Rome"));
        assert_eq!(closed("plain", text).as_deref(), Some("Rome"));
        assert_eq!(closed("routerag", text).as_deref(), Some("Paris"), "the tags of such a protocol are sanitized");
    }

    #[test]
    fn a_closing_tag_ends_the_first_answer_that_is_open() {
        for (text, answer) in [
            ("<answer><answer>Paris</answer></answer>", Some("<answer>Paris")),
            ("<answer>I am unsure. <answer>Paris</answer>", Some("I am unsure. <answer>Paris")),
            ("<answer>Paris</answer> so <answer>x <search>q</search>", Some("Paris")),
            ("<answer>Lyon</answer> so <answer> Paris </answer>", Some("Paris")),
            ("<answer>Paris", None),
        ] {
            for protocol in ["routerag", "search-r1", "evo-rag", "path-router", "graphrag-r1"] {
                assert_eq!(closed(protocol, text).as_deref(), answer, "{protocol}: {text}");
            }
        }
    }

    #[test]
    fn only_the_last_turn_of_path_router_answers() {
        let ask = "<query>{\"query\": \"b\"}</query>";
        let block = "user\n<knowledge>\nDoc 1(Title: T) x\n</knowledge>\nassistant\n<think>\n";
        for (text, answer) in [
            (format!("<answer>Lyon</answer>{ask}{block}c</think>\nI do not know."), None),
            (format!("<think>an <answer></think>\n{ask}{block}c</think>\n<answer>Paris</answer>"), Some("Paris")),
            (format!("{ask}{block}c</think>\n<answer>Lyon</answer> or <answer> Paris </answer>"), Some("Paris")),
        ] {
            assert_eq!(closed("path-router", &text).as_deref(), answer, "{text}");
        }
    }

    #[test]
    fn a_tag_that_the_environment_names_is_paired_with_no_other() {
        for protocol in ["evo-rag", "search-r1", "routerag"] {
            let reply = reply_to_invalid(protocol);
            assert!(reply.contains("<answer>"), "{protocol}: {reply}");
            for (text, answer) in [
                (format!("I think.{reply}<answer> Leeds </answer>"), Some("Leeds")),
                (format!("I think.{reply}<answer> Lee"), None),
                (format!("<answer>Lyon{reply}<answer>Leeds</answer>"), Some("Leeds")),
                (format!("<answer>Lyon{reply}Leeds</answer>"), None),
                (format!("{reply}{reply}"), None),
            ] {
                assert_eq!(closed(protocol, &text).as_deref(), answer, "{text}");
            }
        }
    }
}
