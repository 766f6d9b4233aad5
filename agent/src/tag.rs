//! Code shared by RouteRAG and Search-R1: think, search, information and answer tags, the actions read from them, and
//! the format of evidence. Exact against the golden vectors of both references.

use waymark_index::Passage;

use super::action::{Action, ActionOutcome, PolicySearch};
use super::evidence_header::EvidenceHeader;
use super::guide::{AllowedActions, Guide};
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
            if turn.contains("<search>") {
                let written = between(turn, "<search>", "</search>").map(|(_, written)| written);
                // The reference splits at opening tags first, so a nested one ends the query.
                return written.map_or(Action::Invalid, |text| search(text.split("<search>").next().unwrap_or(text)));
            }
            between(turn, "<answer>", "</answer>").map_or(Action::Invalid, |(_, text)| answer(text))
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
    Guide::turn(offer, ("<search>", "</search>"), modes, false)
}
