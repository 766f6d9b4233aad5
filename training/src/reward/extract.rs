//! The answer in a decoded sequence, as the programs of the references look for it.

use waymark::metric::strip;

use crate::sample::Sample;

/// What RouteRAG looks for an answer after: its training knows no other chat template.
const REPLY: &str = "<|im_start|>assistant";

/// What stands between each pair of `<name>` and `</name>`, from left to right, a pair beginning after the end of the one
/// before it: Python's `re.findall(r"<name>(.*?)</name>", text, re.DOTALL)`.
pub fn between<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(&open) {
        let Some((inside, left)) = after.split_once(&close) else { break };
        found.push(inside);
        rest = left;
    }
    found
}

/// The last answer of a reply, without white space at its ends; tags within retrieved text count.
pub fn last_answer(reply: &str) -> Option<&str> {
    between(reply, "answer").last().map(|answer| strip(answer))
}

/// The last answer of a trajectory, where the policy gave and closed it by itself. One that was asked for when the turns were
/// used up earns nothing in the references, whose loops end there without one: where it is paid, policies learn to search
/// until they are asked. Where a protocol has no tags for answers (TeaRAG, plain), it is the one that the loop took.
pub(crate) fn given(sample: &Sample) -> Option<&str> {
    let tagged = sample.text.contains("<answer>");
    let answer = if tagged { last_answer(&sample.text) } else { sample.answer.as_deref() };
    answer.filter(|_| !sample.is_forced())
}

/// The answer in a prompt with its reply as Search-R1 finds it (`extract_solution` of its `qa_em.py`): the last of at least
/// two, because its prompt holds one as an example.
pub fn search_r1(sequence: &str) -> Option<&str> {
    let answers = between(sequence, "answer");
    if answers.len() < 2 { None } else { answers.last().map(|answer| strip(answer)) }
}

/// The answer in a prompt with its reply as RouteRAG finds it (its `qa_em.py`): the last one after the beginning of the
/// first reply. The reference program fails where there is no reply; here there is no answer then.
pub fn route_rag(sequence: &str) -> Option<&str> {
    last_answer(sequence.split_once(REPLY)?.1)
}
