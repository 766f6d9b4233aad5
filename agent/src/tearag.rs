//! TeaRAG ("A Token-Efficient Agentic Retrieval-Augmented Generation Framework"): labeled lines in place of tags,
//! searches that name their entities, and evidence of passages and triples in one ranking. Follows §4.2 and the case of
//! Table 11; its program was not available.
//!
//! A step consists of the policy's text up to the line of its subquery, the evidence, and the summary with which the
//! next turn begins:
//!
//! ```text
//! Step 1:
//! Important entity: Alexander Carl Otto Westphal
//! Subquery: Who was the father of Alexander Carl Otto Westphal?
//! <Reference> Evidence 1: Title: "…" Text: …
//! Evidence 2: Triplet: … </Reference> Summary: The fact … logically implies the answer: …
//! Final answer: Kreuzlingen
//! ```
//!
//! **Authors.** The environment writes everything from `<Reference>` to `</Reference>`, tags included, as the paper
//! masks it in training (§4.3.1). The policy writes the headings, because it alone decides, after the summary, between
//! another step and the final answer.
//!
//! **Our choices**, where the paper is silent: the instruction; a turn ends with the line of its subquery, or with a
//! `<Reference>` written by the policy; a final answer extends to the end of its turn; commas separate entities; at
//! most five steps; and a turn without an action ends the episode, because the format reward is 0 then.

use waymark_index::{Mode, Passage, SearchOptions, TripleHit};

use super::action::{Action, ActionOutcome, FoundEvidence, PolicySearch};
use super::budget::Budget;
use super::conversation::Conversation;
use super::evidence_header::EvidenceHeader;
use super::guide::{AllowedActions, Guide, GuideState};
use super::protocol::{Injected, Protocol, ProtocolPrompt, ReadingRule};
use super::retrieval::{Format, Retrieval};
use super::scanner::is_blank;
use super::segment::{SegmentKind, Tag, Tags};
use super::training_protocol::TrainingProtocol;

/// The prompt; the question follows.
const INSTRUCTION: &str = "Answer the question step by step. Write each step in this form:
Step 1:
Important entity: the names that the step is about, separated by commas
Subquery: one question about them
What is found for the subquery is given to you between <Reference> and </Reference>: passages, and facts as triplets. Then \
write
Summary: the fact that answers the subquery, and the answer that follows from it
If something is still unknown, go on with the next step. If nothing is, end with
Final answer: the answer to the question, in a few words
Question: ";

/// The prompt of an untrained policy, which would copy any text behind a label: its guide writes the labels.
const GUIDED: &str = "Answer the question step by step. Each step names the important entity of the question and asks one \
subquery about it. What is found is given to you between <Reference> and </Reference>: passages, and facts as triplets. Sum up \
the fact that answers the subquery. When nothing is unknown any more, give the final answer in a few words.
Question: ";

/// Label of the entities of a step.
pub const ENTITY: &str = "Important entity:";

/// Label of the question of a step, which is searched for.
pub const SUBQUERY: &str = "Subquery:";

/// Label of the text after the evidence of a step.
pub const SUMMARY: &str = "Summary:";

/// Label of the final answer.
pub const ANSWER: &str = "Final answer:";

/// Name of the tag around evidence.
pub const EVIDENCE: &str = "Reference";

const REFERENCE: (&str, &str) = ("<Reference>", "</Reference>");

/// Tags of the protocol. Headings, entities and summaries are thoughts; only text that is executed or shown has another
/// kind.
static TAGS: Tags = Tags {
    outside: SegmentKind::Think,
    begins: SegmentKind::Think,
    pairs: &[
        Tag { kind: SegmentKind::Query, open: SUBQUERY, close: "\n" },
        Tag { kind: SegmentKind::Query, open: SUBQUERY, close: REFERENCE.0 },
        Tag { kind: SegmentKind::Answer, open: ANSWER, close: "" },
        Tag { kind: SegmentKind::Text, open: REFERENCE.0, close: REFERENCE.1 },
    ],
    names: &[EVIDENCE],
    labels: &["Step", "Important entity", "Subquery", "Summary", "Final answer"],
    // Passages are joined to one line each, so a header may stand anywhere.
    headers: &[EvidenceHeader { parts: &["evidence", EvidenceHeader::NUMBER, ":"], mark: 2, begins_line: false }],
    trims: true,
};

/// The protocol; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TeaRag;

impl Protocol for TeaRag {
    fn name(&self) -> &'static str {
        "tearag"
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> ProtocolPrompt {
        let instruction = if guided { GUIDED } else { INSTRUCTION };
        ProtocolPrompt::Chat(conversation.with_question(format!("{instruction}{}", conversation.question())))
    }

    fn tags(&self) -> &'static Tags {
        &TAGS
    }

    fn stops(&self) -> &'static [&'static str] {
        &[REFERENCE.0]
    }

    fn lines(&self) -> &'static [&'static str] {
        &[SUBQUERY]
    }

    /// Returns the action of the first line that is a subquery or begins the final answer. A lenient reading also
    /// accepts a subquery without a line break.
    fn parse(&self, turn: &str, reading: ReadingRule) -> Action {
        match ActionLine::of(turn) {
            Some(ActionLine { at, text, search: true }) => {
                let line = text.split_inclusive('\n').next().unwrap_or_default();
                let query = line.split(REFERENCE.0).next().unwrap_or_default();
                let whole = query.len() < line.len() || line.ends_with('\n') || reading.lenient();
                let request = PolicySearch { entities: entities(&turn[..at]), ..PolicySearch::plain(query.trim()) };
                if whole && !request.query.is_empty() { Action::Search(request) } else { Action::Invalid }
            }
            // A `<Reference>` ends the turn and stays in its text, but does not belong to the answer.
            Some(ActionLine { text, .. }) => {
                let text = text.split(REFERENCE.0).next().unwrap_or_default();
                Action::Answer { text: text.trim().to_owned() }
            }
            None => Action::Invalid,
        }
    }

    /// Writes the evidence between the reference tags. An invalid turn gets no observation, which ends the episode.
    fn observation(&self, outcome: &ActionOutcome<'_>, _format: Format) -> Vec<Injected> {
        let body = match outcome {
            ActionOutcome::Failed(reason) => format!("The search gave no result: {reason}."),
            ActionOutcome::Evidence(seen) => block(seen),
            _ => return Vec::new(),
        };
        vec![
            Injected::frame(format!("{} ", REFERENCE.0)),
            Injected::retrieved(body),
            Injected::frame(format!(" {}", REFERENCE.1)),
        ]
    }

    /// Returns the text after the summary label, up to the next label.
    fn summary(&self, turn: &str) -> Option<String> {
        let turn = ActionLine::of(turn).map_or(turn, |asked| &turn[..asked.at]);
        let mut lines = turn.lines().skip_while(|line| behind(line, SUMMARY).is_none());
        let first = behind(lines.next()?, SUMMARY)?;
        let rest = lines.take_while(|line| !is_labeled(line));
        let text = std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n");
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Returns five steps (our choice), with room for a little more evidence than the paper's policies see on average
    /// (Table 7: 618 and 659 tokens).
    fn budget(&self) -> Budget {
        Budget {
            turns: 5,
            observation_tokens: 1024,
            sampled_tokens: 6 * 500,
            context_tokens: 12_288,
            ..Budget::default()
        }
    }

    /// Returns five items of the joint ranking, passages or triples (§5.4.1, Table 11).
    fn retrieval(&self) -> Retrieval {
        Retrieval::with(SearchOptions { mode: Some(Mode::Kag), k: Some(5), ..SearchOptions::default() })
    }

    /// Includes the variants of §5.4: triples before passages, each ranked by itself (TeaRAG-Con, [`Mode::Triples`]),
    /// facts alone (TeaRAG-G, [`Mode::Hypergraph`]) and chunks alone (TeaRAG-S, [`Mode::Passage`]).
    fn shows(&self) -> &'static [Mode] {
        &[Mode::Kag, Mode::Triples, Mode::Hypergraph, Mode::Passage, Mode::Graph, Mode::Hybrid]
    }

    /// Forces the label of the final answer on a new line.
    fn force_answer(&self, _writing: SegmentKind) -> Option<String> {
        Some(format!("\n{ANSWER}"))
    }

    fn guide(&self, offer: &AllowedActions) -> Option<Guide> {
        const SUMMARIZED: usize = 1;
        const CHOICE: usize = 2;
        const NAMED: usize = 3;
        const ASKED: usize = 5;
        const ANSWERED: usize = 6;
        const END: usize = 7;
        let step = (format!("Step {}:\n{ENTITY}", offer.turn.max(1)), NAMED);
        let answer = (ANSWER.to_owned(), ANSWERED);
        let branches = match (offer.search, offer.answer) {
            (true, true) => vec![step, answer],
            (true, false) => vec![step],
            (false, _) => vec![answer],
        };
        // The opening quotation mark makes a small model quote an answer instead of announcing one.
        let goal = match offer.informed {
            false => String::new(),
            true => format!(" The question is: {} According to the evidence, the answer is \"", offer.question),
        };
        let (first, next) =
            if offer.follows() { (format!(" {SUMMARY}{goal}"), SUMMARIZED) } else { (String::new(), CHOICE) };
        let line = |limit, next| GuideState::Free { close: "\n", limit, pause: "\n", eos: false, next };
        Some(Guide {
            states: vec![
                GuideState::Force { text: first, next },
                line(offer.think_tokens, CHOICE),
                GuideState::Choose { branches },
                line(offer.query_tokens, NAMED + 1),
                GuideState::Force { text: SUBQUERY.to_owned(), next: ASKED },
                line(offer.query_tokens, END),
                GuideState::Free { close: "", limit: offer.answer_tokens, pause: "\n", eos: true, next: END },
                GuideState::End,
            ],
        })
    }

    fn training(&self) -> Option<&dyn TrainingProtocol> {
        Some(self)
    }
}

impl TrainingProtocol for TeaRag {
    /// Cuts a turn where generation would have stopped.
    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        let tag = turn.find(REFERENCE.0).map(|at| at + REFERENCE.0.len());
        let mut at = 0;
        let line = turn.split_inclusive('\n').find_map(|line| {
            at += line.len();
            (behind(line, SUBQUERY).is_some() && line.ends_with('\n')).then_some(at)
        });
        &turn[..tag.into_iter().chain(line).min().unwrap_or(turn.len())]
    }
}

/// The line of a turn that contains its action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ActionLine<'t> {
    /// Position of the line.
    at: usize,
    /// Text after the label, up to the end of the turn.
    text: &'t str,
    /// If `true`, the line is a subquery; otherwise it begins the final answer.
    search: bool,
}

impl ActionLine<'_> {
    /// Returns the first such line of a turn.
    fn of(turn: &str) -> Option<ActionLine<'_>> {
        let mut end = 0;
        turn.split_inclusive('\n').find_map(|line| {
            let at = end;
            end += line.len();
            let after = |label| behind(line, label).map(|text| &turn[end - text.len()..]);
            let asked = |search| move |text| ActionLine { at, text, search };
            after(SUBQUERY).map(asked(true)).or_else(|| after(ANSWER).map(asked(false)))
        })
    }
}

/// Returns the text after `label` if the line begins with it.
fn behind<'t>(line: &'t str, label: &str) -> Option<&'t str> {
    line.trim_start_matches(is_blank).strip_prefix(label)
}

/// Returns `true` if a line begins with one of the labels.
fn is_labeled(line: &str) -> bool {
    let step = || behind(line, "Step ").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    [ENTITY, SUBQUERY, SUMMARY, ANSWER].iter().any(|label| behind(line, label).is_some())
        || step().is_some_and(|rest| rest.starts_with(':'))
}

/// Returns the names in the last line of entities. A name that contains a comma is split.
fn entities(turn: &str) -> Vec<String> {
    let named = turn.lines().rev().find_map(|line| behind(line, ENTITY)).unwrap_or_default();
    named.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Formats passages and triples by their common rank, one per line, as in Table 11. Line breaks inside an item become
/// spaces, so that no item can begin a line.
fn block(seen: &FoundEvidence<'_>) -> String {
    // In this mode the passages only name the sources of the facts.
    let passages = if seen.mode == Mode::Hypergraph { &[] } else { seen.passages };
    let mut passages = passages.iter();
    let mut triples = seen.triples.iter().peekable();
    let mut lines: Vec<String> = Vec::with_capacity(seen.passages.len() + seen.triples.len());
    loop {
        let place = lines.len() + 1;
        let item = match triples.next_if(|triple| triple.rank <= place || passages.len() == 0) {
            Some(triple) => triplet(triple),
            None => match passages.next() {
                Some(passage) => titled(passage),
                None => return lines.join("\n"),
            },
        };
        lines.push(format!("Evidence {place}: {item}"));
    }
}

fn titled(passage: &Passage) -> String {
    format!("Title: \"{}\" Text: {}", one_line(&passage.title), one_line(&passage.text))
}

fn triplet(triple: &TripleHit) -> String {
    format!("Triplet: {} {} {}", one_line(&triple.subject), one_line(&triple.relation), one_line(&triple.object))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The case of Table 11.
    const STEP: &str = "Step 1:\nImportant entity: Alexander Carl Otto Westphal\nSubquery: Who was the father of Alexander \
                        Carl Otto Westphal?\n";
    const END: &str = " Summary: The fact Alexander Carl Otto Westphal\u{2019}s father Carl Friedrich Otto Westphal died in \
                       Kreuzlingen logically implies the answer: Kreuzlingen.\nFinal answer: Kreuzlingen";

    fn search(query: &str, names: &[&str]) -> Action {
        let entities = names.iter().map(|name| (*name).to_owned()).collect();
        Action::Search(PolicySearch { entities, ..PolicySearch::plain(query) })
    }

    fn answer(text: &str) -> Action {
        Action::Answer { text: text.to_owned() }
    }

    #[test]
    fn the_published_case_is_read() {
        let query = "Who was the father of Alexander Carl Otto Westphal?";
        for reading in [ReadingRule::First, ReadingRule::SearchFirst, ReadingRule::Lenient, ReadingRule::Guided] {
            assert_eq!(TeaRag.parse(STEP, reading), search(query, &["Alexander Carl Otto Westphal"]));
            assert_eq!(TeaRag.parse(END, reading), answer("Kreuzlingen"));
        }
        let summary = TeaRag.summary(END).unwrap();
        assert!(
            summary.starts_with("The fact Alexander") && summary.ends_with("the answer: Kreuzlingen."),
            "{summary}"
        );
        assert_eq!(TeaRag.summary(STEP), None);
        let spans: Vec<(SegmentKind, &str)> =
            TeaRag.spans(STEP).into_iter().map(|s| (s.kind, &STEP[s.range])).collect();
        let head = "Step 1:\nImportant entity: Alexander Carl Otto Westphal\n";
        assert_eq!(spans, [(SegmentKind::Think, head), (SegmentKind::Query, &format!(" {query}")[..])]);
        let own = "Subquery: q <Reference>";
        let spans: Vec<(SegmentKind, &str)> = TeaRag.spans(own).into_iter().map(|s| (s.kind, &own[s.range])).collect();
        assert_eq!(spans, [(SegmentKind::Query, " q ")]);
        let last = TeaRag.spans(END).pop().unwrap();
        assert_eq!((last.kind, &END[last.range]), (SegmentKind::Answer, " Kreuzlingen"));
    }

    #[test]
    fn turns_in_other_forms() {
        for (turn, strict, lenient) in [
            ("Important entity: A, B ,, C\nSubquery: q\n", search("q", &["A", "B", "C"]), None),
            ("Subquery: q\nSubquery: r\n", search("q", &[]), None),
            (" \tSubquery:q\r\n", search("q", &[]), None),
            ("Subquery: q <Reference>", search("q", &[]), None),
            ("Important entity: A\nImportant entity: B\nSubquery: q", Action::Invalid, Some(search("q", &["B"]))),
            ("Subquery: \nq\n", Action::Invalid, None),
            ("Subquery: <Reference>", Action::Invalid, None),
            ("The Subquery: q\n", Action::Invalid, None),
            ("subquery: q\n", Action::Invalid, None),
            ("Final answer: a\nSubquery: q\n", answer("a\nSubquery: q"), None),
            ("Subquery: q\nFinal answer: a", search("q", &[]), None),
            ("Summary: x\n  Final answer:\n a \n b\n", answer("a \n b"), None),
            ("Final answer:", answer(""), None),
            ("Final answer: a <Reference>", answer("a"), None),
            ("Final answer: a\n<Reference> Evidence 1: b", answer("a"), None),
            ("It is Paris.", Action::Invalid, None),
            ("", Action::Invalid, None),
        ] {
            assert_eq!(TeaRag.parse(turn, ReadingRule::First), strict, "{turn:?}");
            assert_eq!(TeaRag.parse(turn, ReadingRule::SearchFirst), strict, "{turn:?}");
            assert_eq!(TeaRag.parse(turn, ReadingRule::Lenient), lenient.unwrap_or(strict), "{turn:?}");
        }
    }

    #[test]
    fn a_turn_is_cut_where_it_would_have_ended() {
        for (turn, kept) in [
            (format!("{STEP}Summary: made up\nFinal answer: x"), STEP),
            ("Subquery: q <Reference> Evidence 1: x\n".into(), "Subquery: q <Reference>"),
            ("x <Reference>\nSubquery: q\n".into(), "x <Reference>"),
            (END.into(), END),
            ("Subquery: q".into(), "Subquery: q"),
        ] {
            assert_eq!(TeaRag.cut(&turn), kept);
        }
    }

    #[test]
    fn a_guided_prompt_shows_no_label() {
        let text = |guided| match TeaRag.prompt(&Conversation::new("Who?"), guided) {
            ProtocolPrompt::Chat(messages) => messages[0].content.clone(),
            ProtocolPrompt::Raw(_) => unreachable!("it is a chat"),
        };
        for label in [ENTITY, SUBQUERY, SUMMARY, ANSWER] {
            assert!(text(false).contains(label) && !text(true).contains(label), "{label}");
        }
        assert!(text(false).ends_with("\nQuestion: Who?") && text(true).ends_with("\nQuestion: Who?"));
    }

    #[test]
    fn a_guide_writes_the_labels() {
        let offer = AllowedActions { question: "Who?".into(), turn: 2, informed: true, ..AllowedActions::default() };
        let written = |offer: AllowedActions| {
            let states = TeaRag.guide(&offer).unwrap().states;
            let (GuideState::Force { text, next }, GuideState::Choose { branches }) = (&states[0], &states[2]) else {
                unreachable!("it begins with these")
            };
            assert!(branches.iter().all(|(_, next)| *next < states.len()));
            (text.clone(), *next, branches.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>())
        };
        let (summary, next, choices) = written(AllowedActions { search: true, answer: true, ..offer.clone() });
        assert!(summary.starts_with(" Summary: The question is: Who? ") && next == 1, "{summary}");
        assert_eq!(choices, ["Step 2:\nImportant entity:", "Final answer:"]);
        let first = AllowedActions { search: true, turn: 1, informed: false, ..offer.clone() };
        assert_eq!(written(first), (String::new(), 2, vec!["Step 1:\nImportant entity:".to_owned()]));
        assert_eq!(
            written(AllowedActions { informed: false, ..offer }),
            (" Summary:".into(), 1, vec!["Final answer:".into()])
        );
    }

    #[test]
    fn a_summary_may_have_several_lines() {
        let of = |turn: &str| TeaRag.summary(turn);
        assert_eq!(of(" Summary: a\nb\nStep 2:\nImportant entity: c\nSubquery: d\n").as_deref(), Some("a\nb"));
        assert_eq!(of("Summary: a\nStep by step:\nFinal answer: c\nSummary: d").as_deref(), Some("a\nStep by step:"));
        assert_eq!((of("Summary: \nStep 2:\nSubquery: d\n"), of("a Summary: b")), (None, None));
    }

    #[test]
    fn evidence_is_one_list_of_passages_and_triples() {
        let passage = |title: &str, text: &str| Passage { id: title.into(), title: title.into(), text: text.into() };
        let triple = |rank, [subject, relation, object]: [&str; 3]| TripleHit {
            rank,
            score: 1.0,
            subject: subject.into(),
            relation: relation.into(),
            object: object.into(),
            passages: Vec::new(),
        };
        let younger = "Alexander Carl Otto Westphal";
        let older = "Carl Friedrich Otto Westphal";
        let passages = [
            passage(younger, "number of significant scientists"),
            passage(younger, "(18 May 1863,\n Berlin)\nFinal answer: x"),
            passage(older, "(23 March 1833)"),
        ];
        let triples = [triple(3, [younger, "father", older]), triple(4, [younger, "son of", older])];
        let shown = |passages: &[Passage], triples: &[TripleHit]| {
            let seen = FoundEvidence { mode: Mode::Kag, passages, triples };
            let parts = TeaRag.observation(&ActionOutcome::Evidence(seen), Format::Evaluation);
            parts.iter().map(Injected::text).collect::<String>()
        };
        let block = format!(
            "<Reference> Evidence 1: Title: \"{younger}\" Text: number of significant scientists\nEvidence 2: Title: \
             \"{younger}\" Text: (18 May 1863, Berlin) Final answer: x\nEvidence 3: Triplet: {younger} father {older}\n\
             Evidence 4: Triplet: {younger} son of {older}\nEvidence 5: Title: \"{older}\" Text: (23 March 1833) \
             </Reference>"
        );
        assert_eq!(shown(&passages, &triples), block);
        assert_eq!(TeaRag.parse(&block, ReadingRule::Lenient), Action::Invalid);
        let few = "<Reference> Evidence 1: Triplet: a b c\nEvidence 2: Triplet: d e f </Reference>";
        assert_eq!(shown(&[], &[triple(2, ["a", "b", "c"]), triple(5, ["d", "e", "f"])]), few);
        assert_eq!(shown(&[], &[]), "<Reference>  </Reference>");
    }
}
