//! Code shared by RouteRAG and Search-R1: think, search, information and answer tags, the actions read from them, and
//! the format of evidence. Exact against the golden vectors of both references.

use waymark_index::Passage;

use super::action::{Action, ActionOutcome, PolicySearch};
use super::evidence_header::EvidenceHeader;
use super::guide::{AllowedActions, Guide, QueryTags, ThoughtStart};
use super::protocol::{Injected, ReadingRule};
use super::retrieval::Format;
use super::segment::{SegmentKind, Tag, Tags};

/// Header of a passage in [`passages_to_string`].
pub(super) const DOCUMENT: EvidenceHeader =
    EvidenceHeader { parts: &["doc", EvidenceHeader::NUMBER, "(", "title"], mark: 2, begins_line: false };

/// Tags shared by both protocols.
pub static TAGS: Tags = Tags {
    outside: SegmentKind::Text,
    begins: SegmentKind::Text,
    pairs: &[
        Tag { kind: SegmentKind::Think, open: "<think>", close: "</think>" },
        Tag { kind: SegmentKind::Query, open: "<search>", close: "</search>" },
        Tag { kind: SegmentKind::Answer, open: "<answer>", close: "</answer>" },
        Tag { kind: SegmentKind::Text, open: "<information>", close: "</information>" },
    ],
    names: &["think", "search", "answer", "information"],
    labels: &[],
    headers: &[DOCUMENT],
    trims: true,
};

/// Stop strings of a turn.
pub const STOPS: &[&str] = &["</search>", "</answer>"];

/// Reply to a turn without an action, verbatim from both references.
pub const INVALID: &str = "\nMy previous action is invalid. If I want to search, I should put the query between <search> \
     and </search>. If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me \
     try again.\n";

/// Returns the text between the first `open` and the first `close` after it, with the position of `open`.
pub(super) fn between<'t>(text: &'t str, open: &str, close: &str) -> Option<(usize, &'t str)> {
    let at = text.find(open)?;
    let inside = &text[at + open.len()..];
    Some((at, &inside[..inside.find(close)?]))
}

/// Returns the text from the first `open` to the next `close`, the next `open` or the end, whichever comes first. `None`
/// without `open`.
fn split<'t>(text: &'t str, open: &str, close: &str) -> Option<&'t str> {
    let inside = text.split(open).nth(1)?;
    inside.split(close).next()
}

/// Returns the action of a turn. `request` parses the stripped text between the search tags.
pub fn parse(turn: &str, reading: ReadingRule, request: impl Fn(&str) -> PolicySearch) -> Action {
    let search = |written: &str| Action::Search(request(written.trim()));
    let answer = |text: &str| Action::Answer { text: text.trim().to_owned() };
    match reading {
        ReadingRule::First | ReadingRule::Lenient | ReadingRule::Guided => {
            match (between(turn, "<search>", "</search>"), between(turn, "<answer>", "</answer>")) {
                (Some((s, written)), Some((a, _))) if s < a => search(written),
                (Some((_, written)), None) => search(written),
                (_, Some((_, text))) => answer(text),
                (None, None) => Action::Invalid,
            }
        }
        ReadingRule::SearchFirst => {
            // The reference looks for tags in any case, but splits at those in lower case (`RouteRAG.deepqa`).
            let lower = turn.to_ascii_lowercase();
            if lower.contains("<search>") {
                let written = split(turn, "<search>", "</search>").filter(|_| lower.contains("</search>"));
                return written.map_or(Action::Invalid, search);
            }
            if !lower.contains("<answer>") || !lower.contains("</answer>") {
                return Action::Invalid;
            }
            // Without a tag to split at, the reference takes the whole turn.
            answer(split(turn, "<answer>", "</answer>").unwrap_or(turn))
        }
    }
}

/// Returns the part of a turn that training keeps: up to its first `</search>`, else up to its first `</answer>`, else
/// all of it.
pub fn cut(turn: &str) -> &str {
    cut_at(turn, STOPS)
}

/// Cuts a turn after the first occurrence of the first of `stops` that it contains.
pub(super) fn cut_at<'t>(turn: &'t str, stops: &[&str]) -> &'t str {
    stops.iter().find_map(|stop| turn.find(stop).map(|at| &turn[..at + stop.len()])).unwrap_or(turn)
}

/// Formats passages like both references: `Doc i(Title: …) …`, one after the other, each ending in a line break. Title
/// and text are joined by a line break and split again at the first one; a passage without a title is called "Document"
/// in [`Format::Evaluation`].
pub fn passages_to_string(passages: &[Passage], format: Format) -> String {
    let mut out = String::new();
    for (i, passage) in passages.iter().enumerate() {
        let contents = format!("{}\n{}", passage.title, passage.text);
        let (title, text) = contents.split_once('\n').unwrap_or_default();
        let title = if title.is_empty() && format == Format::Evaluation { "Document" } else { title };
        out.push_str(&format!("Doc {}(Title: {title}) {text}\n", i + 1));
    }
    out
}

/// Returns the observation after an action. `space` is written inside the information tags in [`Format::Training`].
pub fn observation(outcome: &ActionOutcome<'_>, format: Format, space: &str) -> Vec<Injected> {
    let body = match outcome {
        ActionOutcome::Invalid(_) => return vec![Injected::frame(INVALID)],
        ActionOutcome::Failed(reason) => format!("The search gave no result: {reason}.\n"),
        ActionOutcome::Evidence(seen) => passages_to_string(seen.passages, format),
        // Policies of both protocols have no other action.
        _ => return Vec::new(),
    };
    let (space, body) = match format {
        Format::Training => (space, body.trim()),
        Format::Evaluation => ("", body.as_str()),
    };
    vec![
        Injected::frame(format!("\n\n<information>{space}")),
        Injected::retrieved(body),
        Injected::frame(format!("{space}</information>\n\n")),
    ]
}

/// Returns the text to force so that an answer follows: it closes any open tag first.
pub fn force_answer(writing: SegmentKind) -> String {
    close(writing, "</search>")
}

/// Returns the text of [`force_answer`] for a protocol whose searches end with `query`.
pub(super) fn close(writing: SegmentKind, query: &str) -> String {
    match writing {
        SegmentKind::Think => "</think>\n<answer>".to_owned(),
        SegmentKind::Query => format!("{query}\n<answer>"),
        SegmentKind::Text | SegmentKind::Answer | SegmentKind::Refusal => "\n<answer>".to_owned(),
    }
}

/// Adapts an instruction to an untrained policy, which copies what it sees: the question becomes the example of a
/// query, and the example of an answer is removed.
pub(super) fn without_example(instruction: &str, query: &str, answer: &str, question: &str) -> String {
    let question = question.split_whitespace().collect::<Vec<_>>().join(" ");
    instruction.replace(answer, "").replace(query, &question)
}

/// Returns the state machine shared by both protocols. `modes` are the ways to begin a query; empty if queries name no
/// mode.
pub fn guide(offer: &AllowedActions, modes: &[&str]) -> Guide {
    let query = QueryTags { open: "<search>", close: "</search>" };
    Guide::turn(offer, query, modes, ThoughtStart::Unopened)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values follow `deepqa` of RouteRAG's `RouteRAG.py`, which fails on the third turn.
    #[test]
    fn evaluation_looks_for_tags_in_any_case_and_splits_at_those_in_lower_case() {
        fn request(written: &str) -> PolicySearch {
            PolicySearch::plain(written)
        }
        let search = |written: &str| Action::Search(request(written));
        let answer = |text: &str| Action::Answer { text: text.to_owned() };
        for (turn, action) in [
            ("<search> a <search>b</search>", search("a")),
            ("<search>a</Search> b", search("a</Search> b")),
            ("<Search>a</Search>", Action::Invalid),
            ("<search>a <answer>x</answer>", Action::Invalid),
            ("<Search> a <answer>x</answer>", Action::Invalid),
            ("<answer>a <answer>b</answer>", answer("a")),
            ("<answer> a </ANSWER> b", answer("a </ANSWER> b")),
            ("so <ANSWER>Paris</ANSWER>\n", answer("so <ANSWER>Paris</ANSWER>")),
            ("<answer>a", Action::Invalid),
            ("a</answer>", Action::Invalid),
        ] {
            assert_eq!(parse(turn, ReadingRule::SearchFirst, request), action, "{turn}");
        }
    }
}
