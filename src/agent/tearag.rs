//! TeaRAG ("A Token-Efficient Agentic Retrieval-Augmented Generation Framework"): labelled lines in place of tags, searches
//! that name what they are about, and passages and triples ranked together as their evidence. After §4.2 and the case of
//! Table 11; its program was not to be had.
//!
//! A step is what the policy writes up to the line of its subquery, the evidence, and the summary that the next turn begins
//! with:
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
//! **Who writes what.** The environment gives what stands between `<Reference>` and `</Reference>`, those included, as the
//! paper masks it in training (§4.3.1). The headings are the policy's: nobody else knows, before the summary is written,
//! whether another step or the final answer follows it.
//!
//! **What is ours**, because the paper does not tell: the instruction; that a turn ends with the line of its subquery, or
//! with a `<Reference>` of the policy's own; that a final answer goes on to the end of its turn; commas between several
//! entities; five steps at most; and that a turn which asks for nothing ends the episode, as the reward of form is 0 then.

use waymark_index::{Mode, Passage, TripleHit};

use super::budget::Budget;
use super::conversation::Conversation;
use super::guide::{Guide, Offer, State};
use super::policy::Retrieval;
use super::protocol::{Action, Format, Injected, Kind, Outcome, Prompt, Protocol, Reading, Request, Seen, Tag, Tags};
use super::scanner::is_blank;

/// The prompt. The question follows.
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

/// The same for an untrained policy, which would copy whatever stood behind a label: its guide writes the labels.
const GUIDED: &str = "Answer the question step by step. Each step names the important entity of the question and asks one \
subquery about it. What is found is given to you between <Reference> and </Reference>: passages, and facts as triplets. Sum up \
the fact that answers the subquery. When nothing is unknown any more, give the final answer in a few words.
Question: ";

const ENTITY: &str = "Important entity:";
const SUBQUERY: &str = "Subquery:";
const SUMMARY: &str = "Summary:";
const ANSWER: &str = "Final answer:";

const REFERENCE: (&str, &str) = ("<Reference>", "</Reference>");

/// Headings, entities and summaries are the policy's thoughts; only what is executed or shown has a kind of its own.
static TAGS: Tags = Tags {
    outside: Kind::Think,
    begins: Kind::Think,
    pairs: &[
        Tag { kind: Kind::Query, open: SUBQUERY, close: "\n" },
        Tag { kind: Kind::Query, open: SUBQUERY, close: REFERENCE.0 },
        Tag { kind: Kind::Answer, open: ANSWER, close: "" },
        Tag { kind: Kind::Text, open: REFERENCE.0, close: REFERENCE.1 },
    ],
    names: &["Reference"],
    labels: &["Step", "Important entity", "Subquery", "Summary", "Final answer"],
    trims: true,
};

/// The protocol; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TeaRag;

impl Protocol for TeaRag {
    fn name(&self) -> &'static str {
        "tearag"
    }

    fn prompt(&self, conversation: &Conversation, guided: bool) -> Prompt {
        let instruction = if guided { GUIDED } else { INSTRUCTION };
        Prompt::Chat(conversation.with_last(format!("{instruction}{}", conversation.question())))
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

    /// The first line that is a subquery or begins the final answer. A subquery whose line does not end is taken where it is
    /// clear what is meant.
    fn parse(&self, turn: &str, reading: Reading) -> Action {
        match Asked::of(turn) {
            Some(Asked { at, text, search: true }) => {
                let line = text.split_inclusive('\n').next().unwrap_or_default();
                let query = line.split(REFERENCE.0).next().unwrap_or_default();
                let whole = query.len() < line.len() || line.ends_with('\n') || reading.lenient();
                let request = Request { entities: entities(&turn[..at]), ..Request::plain(query.trim()) };
                if whole && !request.query.is_empty() { Action::Search(request) } else { Action::Invalid }
            }
            // The tag ends a turn and is kept as its end: it belongs to no answer.
            Some(Asked { text, .. }) => {
                let text = text.split(REFERENCE.0).next().unwrap_or_default();
                Action::Answer { text: text.trim().to_owned() }
            }
            None => Action::Invalid,
        }
    }

    /// Up to where generation would have stopped.
    fn cut<'t>(&self, turn: &'t str) -> &'t str {
        let tag = turn.find(REFERENCE.0).map(|at| at + REFERENCE.0.len());
        let mut at = 0;
        let line = turn.split_inclusive('\n').find_map(|line| {
            at += line.len();
            (behind(line, SUBQUERY).is_some() && line.ends_with('\n')).then_some(at)
        });
        &turn[..tag.into_iter().chain(line).min().unwrap_or(turn.len())]
    }

    /// To a turn that asks for nothing, nothing: the episode ends.
    fn observation(&self, outcome: &Outcome<'_>, _format: Format) -> Vec<Injected> {
        let body = match outcome {
            Outcome::Invalid(_) | Outcome::Withdrawn(_) => return Vec::new(),
            Outcome::Failed(reason) => format!("The search gave no result: {reason}."),
            Outcome::Evidence(seen) => block(seen),
        };
        vec![
            Injected::frame(format!("{} ", REFERENCE.0)),
            Injected::retrieved(body),
            Injected::frame(format!(" {}", REFERENCE.1)),
        ]
    }

    /// What follows its label, up to the next one.
    fn summary(&self, turn: &str) -> Option<String> {
        let turn = Asked::of(turn).map_or(turn, |asked| &turn[..asked.at]);
        let mut lines = turn.lines().skip_while(|line| behind(line, SUMMARY).is_none());
        let first = behind(lines.next()?, SUMMARY)?;
        let rest = lines.take_while(|line| !is_labelled(line));
        let text = std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n");
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Five steps, which are ours, and room for a little more evidence than its policies see on average (Table 7: 618 and
    /// 659 tokens).
    fn budget(&self) -> Budget {
        Budget {
            turns: 5,
            observation_tokens: 1024,
            sampled_tokens: 6 * 500,
            context_tokens: 12_288,
            ..Budget::default()
        }
    }

    /// Five items of its own graph, whatever they are (§5.4.1, Table 11).
    fn retrieval(&self) -> Retrieval {
        Retrieval { mode: Mode::Kag, k: 5, ..Retrieval::default() }
    }

    fn shows(&self) -> &'static [Mode] {
        &[Mode::Kag, Mode::Passage, Mode::Graph, Mode::Hybrid]
    }

    /// An answer begins a line.
    fn force_answer(&self, _writing: Kind) -> Option<String> {
        Some(format!("\n{ANSWER}"))
    }

    fn guide(&self, offer: &Offer) -> Option<Guide> {
        const SUMMARISED: usize = 1;
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
        // As elsewhere: the opening quotation mark makes a small model quote an answer instead of announcing one.
        let goal = match offer.informed {
            false => String::new(),
            true => format!(" The question is: {} According to the evidence, the answer is \"", offer.question),
        };
        let (first, next) =
            if offer.follows() { (format!(" {SUMMARY}{goal}"), SUMMARISED) } else { (String::new(), CHOICE) };
        let line = |limit, next| State::Free { close: "\n", limit, pause: "\n", eos: false, next };
        Some(Guide {
            states: vec![
                State::Force { text: first, next },
                line(offer.think_tokens, CHOICE),
                State::Choose { branches },
                line(offer.query_tokens, NAMED + 1),
                State::Force { text: SUBQUERY.to_owned(), next: ASKED },
                line(offer.query_tokens, END),
                State::Free { close: "", limit: offer.answer_tokens, pause: "\n", eos: true, next: END },
                State::End,
            ],
        })
    }
}

/// The line of a turn that asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked<'t> {
    /// Where it begins.
    at: usize,
    /// What stands behind its label, and everything after that.
    text: &'t str,
    /// Whether it is a subquery; else it begins the final answer.
    search: bool,
}

impl Asked<'_> {
    /// The first of a turn.
    fn of(turn: &str) -> Option<Asked<'_>> {
        let mut end = 0;
        turn.split_inclusive('\n').find_map(|line| {
            let at = end;
            end += line.len();
            let after = |label| behind(line, label).map(|text| &turn[end - text.len()..]);
            let asked = |search| move |text| Asked { at, text, search };
            after(SUBQUERY).map(asked(true)).or_else(|| after(ANSWER).map(asked(false)))
        })
    }
}

/// What stands behind a label in the line that begins with it.
fn behind<'t>(line: &'t str, label: &str) -> Option<&'t str> {
    line.trim_start_matches(is_blank).strip_prefix(label)
}

/// Whether a line begins with one of the labels.
fn is_labelled(line: &str) -> bool {
    let step = || behind(line, "Step ").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    [ENTITY, SUBQUERY, SUMMARY, ANSWER].iter().any(|label| behind(line, label).is_some())
        || step().is_some_and(|rest| rest.starts_with(':'))
}

/// The names in the last line that is for them. A name that holds a comma is two.
fn entities(turn: &str) -> Vec<String> {
    let named = turn.lines().rev().find_map(|line| behind(line, ENTITY)).unwrap_or_default();
    named.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Passages and triples in the order of their common ranks, each in a line of its own, as in Table 11. What stands in one
/// line can begin none.
fn block(seen: &Seen<'_>) -> String {
    let (mut passages, mut triples) = (seen.passages.iter(), seen.triples.iter().peekable());
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
        Action::Search(Request { entities, ..Request::plain(query) })
    }

    fn answer(text: &str) -> Action {
        Action::Answer { text: text.to_owned() }
    }

    #[test]
    fn the_published_case_is_read() {
        let query = "Who was the father of Alexander Carl Otto Westphal?";
        for reading in [Reading::First, Reading::SearchFirst, Reading::Lenient, Reading::Guided] {
            assert_eq!(TeaRag.parse(STEP, reading), search(query, &["Alexander Carl Otto Westphal"]));
            assert_eq!(TeaRag.parse(END, reading), answer("Kreuzlingen"));
        }
        let summary = TeaRag.summary(END).unwrap();
        assert!(
            summary.starts_with("The fact Alexander") && summary.ends_with("the answer: Kreuzlingen."),
            "{summary}"
        );
        assert_eq!(TeaRag.summary(STEP), None);
        let spans: Vec<(Kind, &str)> = TeaRag.spans(STEP).into_iter().map(|s| (s.kind, &STEP[s.range])).collect();
        let head = "Step 1:\nImportant entity: Alexander Carl Otto Westphal\n";
        assert_eq!(spans, [(Kind::Think, head), (Kind::Query, &format!(" {query}")[..])]);
        let own = "Subquery: q <Reference>";
        let spans: Vec<(Kind, &str)> = TeaRag.spans(own).into_iter().map(|s| (s.kind, &own[s.range])).collect();
        assert_eq!(spans, [(Kind::Query, " q ")]);
        let last = TeaRag.spans(END).pop().unwrap();
        assert_eq!((last.kind, &END[last.range]), (Kind::Answer, " Kreuzlingen"));
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
            assert_eq!(TeaRag.parse(turn, Reading::First), strict, "{turn:?}");
            assert_eq!(TeaRag.parse(turn, Reading::SearchFirst), strict, "{turn:?}");
            assert_eq!(TeaRag.parse(turn, Reading::Lenient), lenient.unwrap_or(strict), "{turn:?}");
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
            Prompt::Chat(messages) => messages[0].content.clone(),
            Prompt::Raw(_) => unreachable!("it is a chat"),
        };
        for label in [ENTITY, SUBQUERY, SUMMARY, ANSWER] {
            assert!(text(false).contains(label) && !text(true).contains(label), "{label}");
        }
        assert!(text(false).ends_with("\nQuestion: Who?") && text(true).ends_with("\nQuestion: Who?"));
    }

    #[test]
    fn a_guide_writes_the_labels() {
        let offer = Offer { question: "Who?".into(), turn: 2, informed: true, ..Offer::default() };
        let written = |offer: Offer| {
            let states = TeaRag.guide(&offer).unwrap().states;
            let (State::Force { text, next }, State::Choose { branches }) = (&states[0], &states[2]) else {
                unreachable!("it begins with these")
            };
            assert!(branches.iter().all(|(_, next)| *next < states.len()));
            (text.clone(), *next, branches.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>())
        };
        let (summary, next, choices) = written(Offer { search: true, answer: true, ..offer.clone() });
        assert!(summary.starts_with(" Summary: The question is: Who? ") && next == 1, "{summary}");
        assert_eq!(choices, ["Step 2:\nImportant entity:", "Final answer:"]);
        let first = Offer { search: true, turn: 1, informed: false, ..offer.clone() };
        assert_eq!(written(first), (String::new(), 2, vec!["Step 1:\nImportant entity:".to_owned()]));
        assert_eq!(written(Offer { informed: false, ..offer }), (" Summary:".into(), 1, vec!["Final answer:".into()]));
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
        let (younger, older) = ("Alexander Carl Otto Westphal", "Carl Friedrich Otto Westphal");
        let passages = [
            passage(younger, "number of significant scientists"),
            passage(younger, "(18 May 1863,\n Berlin)\nFinal answer: x"),
            passage(older, "(23 March 1833)"),
        ];
        let triples = [triple(3, [younger, "father", older]), triple(4, [younger, "son of", older])];
        let shown = |passages: &[Passage], triples: &[TripleHit]| {
            let seen = Seen { mode: Mode::Kag, passages, triples };
            let parts = TeaRag.observation(&Outcome::Evidence(seen), Format::Evaluation);
            parts.iter().map(Injected::text).collect::<String>()
        };
        let block = format!(
            "<Reference> Evidence 1: Title: \"{younger}\" Text: number of significant scientists\nEvidence 2: Title: \
             \"{younger}\" Text: (18 May 1863, Berlin) Final answer: x\nEvidence 3: Triplet: {younger} father {older}\n\
             Evidence 4: Triplet: {younger} son of {older}\nEvidence 5: Title: \"{older}\" Text: (23 March 1833) \
             </Reference>"
        );
        assert_eq!(shown(&passages, &triples), block);
        assert_eq!(TeaRag.parse(&block, Reading::Lenient), Action::Invalid);
        let few = "<Reference> Evidence 1: Triplet: a b c\nEvidence 2: Triplet: d e f </Reference>";
        assert_eq!(shown(&[], &[triple(2, ["a", "b", "c"]), triple(5, ["d", "e", "f"])]), few);
        assert_eq!(shown(&[], &[]), "<Reference>  </Reference>");
    }
}
