//! What RouteRAG and Search-R1 share: think, search, information and answer tags, how actions are read from them, and
//! how evidence is written. Exact against the golden vectors of both references.

use waymark_index::Passage;

use super::guide::{Guide, Offer};
use super::protocol::{Action, Format, Injected, Kind, Outcome, Reading, Request, Tag, Tags};

/// The tags of the family.
pub static TAGS: Tags = Tags {
    outside: Kind::Text,
    begins: Kind::Text,
    pairs: &[
        Tag { kind: Kind::Think, open: "<think>", close: "</think>" },
        Tag { kind: Kind::Query, open: "<search>", close: "</search>" },
        Tag { kind: Kind::Answer, open: "<answer>", close: "</answer>" },
        Tag { kind: Kind::Text, open: "<information>", close: "</information>" },
    ],
    names: &["think", "search", "answer", "information"],
    labels: &[],
    trims: true,
};

/// Where a turn ends.
pub const STOPS: &[&str] = &["</search>", "</answer>"];

/// What a turn without an action is answered, word for word as both references have it.
pub const INVALID: &str = "\nMy previous action is invalid. If I want to search, I should put the query between <search> \
     and </search>. If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me \
     try again.\n";

/// The text between the first `open` and the first `close` after it, and what precedes the former.
pub(super) fn between<'t>(text: &'t str, open: &str, close: &str) -> Option<(usize, &'t str)> {
    let at = text.find(open)?;
    let inside = &text[at + open.len()..];
    Some((at, &inside[..inside.find(close)?]))
}

/// Reads the action of a turn. `request` makes a search of what stands between the search tags, stripped.
pub fn parse(turn: &str, reading: Reading, request: impl Fn(&str) -> Request) -> Action {
    let search = |written: &str| Action::Search(request(written.trim()));
    let answer = |text: &str| Action::Answer { text: text.trim().to_owned() };
    match reading {
        Reading::First | Reading::Lenient | Reading::Guided => {
            match (between(turn, "<search>", "</search>"), between(turn, "<answer>", "</answer>")) {
                (Some((s, written)), Some((a, _))) if s < a => search(written),
                (Some((_, written)), None) => search(written),
                (_, Some((_, text))) => answer(text),
                (None, None) => Action::Invalid,
            }
        }
        Reading::SearchFirst => {
            if turn.contains("<search>") {
                let written = between(turn, "<search>", "</search>").map(|(_, written)| written);
                // The reference splits at opening tags first, so a nested one ends the query.
                return written.map_or(Action::Invalid, |text| search(text.split("<search>").next().unwrap_or(text)));
            }
            between(turn, "<answer>", "</answer>").map_or(Action::Invalid, |(_, text)| answer(text))
        }
    }
}

/// The part of a turn that training keeps: up to its first `</search>`, else up to its first `</answer>`, else all.
pub fn cut(turn: &str) -> &str {
    cut_at(turn, STOPS)
}

/// A turn up to the first of the first of `stops` that occurs, else all of it.
pub(super) fn cut_at<'t>(turn: &'t str, stops: &[&str]) -> &'t str {
    stops.iter().find_map(|stop| turn.find(stop).map(|at| &turn[..at + stop.len()])).unwrap_or(turn)
}

/// Passages as both references write them: `Doc i(Title: …) …`, one after the other, each ending in a line break. A
/// passage is title, line break, text, and its title is the first line of that; a passage without a title is called
/// "Document" in [`Format::Evaluation`].
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

/// The observation after an action. `space` stands inside the information tags in [`Format::Training`].
pub fn observation(outcome: &Outcome<'_>, format: Format, space: &str) -> Vec<Injected> {
    let body = match outcome {
        Outcome::Invalid(_) => return vec![Injected::frame(INVALID)],
        Outcome::Withdrawn(_) => return Vec::new(),
        Outcome::Failed(reason) => format!("The search gave no result: {reason}.\n"),
        Outcome::Evidence(seen) => passages_to_string(seen.passages, format),
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

/// What to write so that an answer follows: whatever is open is closed first.
pub fn force_answer(writing: Kind) -> String {
    close(writing, "</search>")
}

/// [`force_answer`] for a protocol whose searches end with `query`.
pub(super) fn close(writing: Kind, query: &str) -> String {
    match writing {
        Kind::Think => "</think>\n<answer>".to_owned(),
        Kind::Query => format!("{query}\n<answer>"),
        Kind::Text | Kind::Answer | Kind::Refusal => "\n<answer>".to_owned(),
    }
}

/// An instruction for an untrained policy, which repeats what it sees: the question is the example of a query, and there
/// is no example of an answer.
pub(super) fn without_example(instruction: &str, query: &str, answer: &str, question: &str) -> String {
    let question = question.split_whitespace().collect::<Vec<_>>().join(" ");
    instruction.replace(answer, "").replace(query, &question)
}

/// The family as a state machine. `modes` are the ways to begin a query; none where a query names no mode.
pub fn guide(offer: &Offer, modes: &[&str]) -> Guide {
    Guide::turn(offer, ("<search>", "</search>"), modes, false)
}
