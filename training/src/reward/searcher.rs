//! R1-Searcher's rewards, which GraphRAG-R1's training follows. They read a solution: what comes after the `<think>` that
//! the prompt ends with. No recipe can name them: GraphRAG-R1, whose protocol writes these tags, has rewards of its own.

use waymark::metric::{searcher, strip};

/// Tags of a search, in order; documents begin with the first one's number.
const TAGS: [&str; 5] = [
    "<|begin_of_query|>",
    "<|end_of_query|>",
    "<|begin_of_documents|>",
    "<|end_of_documents|>",
    "<|begin_of_documents|>\n(1)",
];

/// Words that an answer may have (`reward_server_qwen_zero`).
const LONGEST: usize = 10;

/// Stage 1 for an instructed model: ±1 for an answer that has all words of the gold one, ½ for searches that were answered,
/// ½ for one end of thought and one answer.
pub fn first_stage(solution: &str, gold: &str) -> f64 {
    let right = answer(solution).is_some_and(|answer| searcher::covers_words(answer, gold));
    let searched = solution.contains(TAGS[0]) && answered(solution, 4);
    let half = |holds: bool| if holds { 0.5 } else { 0.0 };
    (if right { 1.0 } else { -1.0 }) + half(searched) + half(closed(solution))
}

/// Stage 2 for an instructed model: F1, and 1 less where the form is broken.
pub fn second_stage(solution: &str, gold: &str) -> f64 {
    let formed = answered(solution, 4) && closed(solution) && !chinese(solution);
    overlap(solution, gold) - if formed { 0.0 } else { 1.0 }
}

/// For a base model: F1, and 2 less where the form is broken, which here includes answers that are long or hold a tag, and
/// solutions that go on as a chat.
pub fn zero(solution: &str, gold: &str) -> f64 {
    let answer = answer(solution).unwrap_or_default();
    let plain = !answer.contains("begin_of_query") && !answer.contains("begin_of_documents");
    let formed = answered(solution, 5)
        && closed(solution)
        && plain
        && answer.split_whitespace().count() <= LONGEST
        && !chinese(solution)
        && !solution.contains("assistant");
    overlap(solution, gold) - if formed { 0.0 } else { 2.0 }
}

/// The last answer, also one that is not closed.
fn answer(solution: &str) -> Option<&str> {
    let (_, after) = solution.rsplit_once("<answer>")?;
    Some(strip(after.split_once("</answer>").map_or(after, |(answer, _)| answer)))
}

fn overlap(solution: &str, gold: &str) -> f64 {
    answer(solution).map_or(0.0, |answer| searcher::overlap(answer, gold).f1)
}

/// Whether the first so many of the tags occur equally often.
pub(super) fn answered(solution: &str, tags: usize) -> bool {
    let mut counts = TAGS[..tags].iter().map(|tag| solution.matches(tag).count());
    let first = counts.next();
    counts.all(|count| Some(count) == first)
}

/// Whether thought ends once, without beginning anew, and there is one answer.
fn closed(solution: &str) -> bool {
    let count = |tag: &str| solution.matches(tag).count();
    [count("<think>"), count("</think>"), count("<answer>"), count("</answer>")] == [0, 1, 1, 1]
}

/// Whether there are Chinese characters outside documents.
fn chinese(solution: &str) -> bool {
    let is_chinese = |text: &str| text.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c));
    outside(solution).into_iter().any(is_chinese)
}

/// What a solution says outside documents, in parts.
pub(super) fn outside(solution: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), solution);
    while let Some((before, after)) = rest.split_once(TAGS[2]) {
        let Some((_, left)) = after.split_once(TAGS[3]) else { break };
        parts.push(before);
        rest = left;
    }
    parts.push(rest);
    parts
}
