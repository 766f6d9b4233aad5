//! Constraint for a turn that is free until its answer, or a tool call, begins. A label counts only at the beginning of
//! a line, and a call only where one is read, as in the reader of the turn.

use std::sync::Arc;

use waymark_engine::{Constraint, ConstraintState, LineLabel, StopString};
use waymark_models::sampler::TokenMask;
use waymark_models::tokenizer::TokenBytes;

use super::scanner::Scanner;
use super::segment::{SegmentKind, Tag, Tags};

/// Constraint of a tagged turn: any text up to the tag that opens an answer, then the answer's constraint. A query is
/// never an answer, whatever it contains.
#[derive(Debug, Clone)]
pub(super) struct AnswerOpening(Arc<OpeningRule>);

#[derive(Debug)]
struct OpeningRule {
    marks: Arc<OpeningMarks>,
    answer: Arc<dyn Constraint>,
    /// Places at which the opening tag counts. `None` counts it everywhere.
    scope: Option<CallScope>,
}

/// Places of a turn at which a tool call is read: outside all tags, and not after an answer in tags.
#[derive(Debug, Clone, Copy)]
struct CallScope {
    tags: &'static Tags,
    /// Kind of the text with which the turn begins.
    begins: SegmentKind,
}

impl CallScope {
    /// Returns the reader of a turn at its beginning.
    fn reader(self) -> ScopeReader {
        ScopeReader { outside: self.tags.outside, scanner: Scanner::inside(self.tags, self.begins) }
    }
}

/// Reader of a turn that tells whether a tool call would be read next.
#[derive(Debug)]
struct ScopeReader {
    /// Kind of text outside every tag.
    outside: SegmentKind,
    scanner: Scanner,
}

impl ScopeReader {
    /// Reads the next byte of the turn.
    fn read(&mut self, byte: u8) {
        // Tags are ASCII, so any other character may stand for the bytes of one that is not.
        let read = if byte.is_ascii() { char::from(byte) } else { char::REPLACEMENT_CHARACTER };
        self.scanner.push(read.encode_utf8(&mut [0; 4]), &mut Vec::new());
    }

    fn takes_call(&self) -> bool {
        let answers = self.outside == SegmentKind::Answer;
        self.scanner.writing() == self.outside && (answers || !self.scanner.answered())
    }
}

/// Tags that open the answer or free the turn from the constraint, prepared for a vocabulary; shared by all answer
/// constraints.
#[derive(Debug)]
pub(super) struct OpeningMarks {
    tokens: Arc<TokenBytes>,
    opens: OpeningMark,
    /// Tags after which the turn is unconstrained.
    frees: Vec<OpeningMark>,
    /// Allowed tokens by the state of the opening tag; `None` allows all. Tokens that complete the tag and continue
    /// after it are forbidden, because the constraint cannot cover their rest. A token that ends with the tag always
    /// exists.
    masks: Vec<Option<TokenMask>>,
}

/// An opening tag or label, matched byte by byte.
#[derive(Debug)]
enum OpeningMark {
    Tag(StopString),
    Label(LineLabel),
}

impl OpeningMark {
    fn of(tag: &Tag) -> OpeningMark {
        if tag.is_label() {
            OpeningMark::Label(LineLabel::new(tag.open.as_bytes()))
        } else {
            OpeningMark::Tag(StopString::new(tag.open.as_bytes()))
        }
    }

    /// Returns the number of states before the mark is complete; the first is 0.
    fn states(&self) -> usize {
        match self {
            OpeningMark::Tag(tag) => tag.byte_count(),
            OpeningMark::Label(label) => label.states(),
        }
    }

    /// Returns the state after one more byte. `None` when the mark is complete.
    fn advance(&self, state: usize, byte: u8) -> Option<usize> {
        match self {
            OpeningMark::Tag(tag) => Some(tag.advance(state, byte)).filter(|matched| *matched < tag.byte_count()),
            OpeningMark::Label(label) => label.advance(state, byte),
        }
    }
}

impl OpeningMarks {
    /// Prepares the marks for answers that `tag` opens. Scans the whole vocabulary.
    pub(super) fn new(tag: &Tag, tags: &Tags, tokens: Arc<TokenBytes>) -> OpeningMarks {
        let opens = OpeningMark::of(tag);
        let frees = tags.pairs.iter().filter(|tag| tag.kind == SegmentKind::Query).map(OpeningMark::of).collect();
        let masks = (0..opens.states()).map(|state| mask(&opens, state, &tokens)).collect();
        OpeningMarks { tokens, opens, frees, masks }
    }
}

impl AnswerOpening {
    /// Constrains the text after the opening tag to `answer`.
    pub(super) fn new(marks: Arc<OpeningMarks>, answer: Arc<dyn Constraint>) -> AnswerOpening {
        AnswerOpening(Arc::new(OpeningRule { marks, answer, scope: None }))
    }

    /// Constrains the text after the opening tag of a tool call to `call`, in the turns of a protocol with these tags.
    /// The tag counts only where the reader of the turn reads a call.
    pub(super) fn of_call(marks: Arc<OpeningMarks>, call: Arc<dyn Constraint>, tags: &'static Tags) -> AnswerOpening {
        let scope = Some(CallScope { tags, begins: tags.begins });
        AnswerOpening(Arc::new(OpeningRule { marks, answer: call, scope }))
    }

    /// Returns the constraint of a turn that begins inside `kind`.
    pub(super) fn inside(&self, kind: SegmentKind) -> AnswerOpening {
        let OpeningRule { marks, answer, scope } = &*self.0;
        let scope = scope.map(|scope| CallScope { begins: kind, ..scope });
        AnswerOpening(Arc::new(OpeningRule { marks: Arc::clone(marks), answer: Arc::clone(answer), scope }))
    }
}

/// Returns the mask of all tokens except those that, from this state, complete `tag` before their own end. `None` if
/// there are no such tokens.
fn mask(tag: &OpeningMark, state: usize, tokens: &TokenBytes) -> Option<TokenMask> {
    let overruns = |id: &u32| {
        let bytes = tokens.get(*id);
        let mut state = Some(state);
        let complete = bytes.iter().position(|&byte| {
            state = state.and_then(|state| tag.advance(state, byte));
            state.is_none()
        });
        complete.is_some_and(|at| at + 1 < bytes.len())
    };
    let all = TokenMask::all(tokens.len());
    let banned: Vec<u32> = (0..tokens.len() as u32).filter(overruns).collect();
    (!banned.is_empty()).then(|| {
        banned.into_iter().fold(all, |mut mask, id| {
            mask.forbid(id);
            mask
        })
    })
}

impl AnswerOpening {
    /// Returns the state at the beginning of a turn.
    pub(super) fn progress(&self) -> OpeningProgress {
        let frees = vec![0; self.0.marks.frees.len()];
        let reader = self.0.scope.map(CallScope::reader);
        OpeningProgress { rule: Arc::clone(&self.0), at: OpeningState::Before { opens: 0, frees, reader } }
    }
}

impl Constraint for AnswerOpening {
    fn begin(&self) -> Box<dyn ConstraintState> {
        Box::new(self.progress())
    }
}

/// State of an [`AnswerOpening`].
#[derive(Debug)]
pub(super) struct OpeningProgress {
    rule: Arc<OpeningRule>,
    at: OpeningState,
}

#[derive(Debug)]
enum OpeningState {
    /// State of each mark, and the reader that decides about the first one.
    Before {
        opens: usize,
        frees: Vec<usize>,
        reader: Option<ScopeReader>,
    },
    Inside(Box<dyn ConstraintState>),
    Free,
}

impl OpeningProgress {
    /// Returns `true` if the answer has begun.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.at, OpeningState::Inside(_))
    }
}

impl ConstraintState for OpeningProgress {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        match &mut self.at {
            OpeningState::Before { reader: Some(reader), .. } if !reader.takes_call() => Ok(None),
            OpeningState::Before { opens, .. } => Ok(self.rule.marks.masks[*opens].clone()),
            OpeningState::Inside(answer) => answer.allowed(),
            OpeningState::Free => Ok(None),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let OpeningProgress { rule, at } = self;
        let (opens, frees, reader) = match at {
            OpeningState::Inside(answer) => return answer.accept(id),
            OpeningState::Free => return Ok(()),
            OpeningState::Before { opens, frees, reader } => (opens, frees, reader),
        };
        for &byte in rule.marks.tokens.get(id) {
            if let Some(reader) = reader.as_mut() {
                reader.read(byte);
            }
            let next = rule.marks.opens.advance(*opens, byte);
            if next.is_none() && reader.as_ref().is_none_or(ScopeReader::takes_call) {
                // The token ends here: the mask forbids tokens that reach beyond the tag.
                self.at = OpeningState::Inside(rule.answer.begin());
                return Ok(());
            }
            // A tag that is complete where it does not count is text.
            *opens = next.unwrap_or(0);
            for (tag, state) in rule.marks.frees.iter().zip(frees.iter_mut()) {
                let Some(next) = tag.advance(*state, byte) else {
                    self.at = OpeningState::Free;
                    return Ok(());
                };
                *state = next;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::tag::TAGS;
    use super::*;

    /// A constraint that allows only token 0.
    #[derive(Debug)]
    struct Only(usize);

    impl Constraint for Only {
        fn begin(&self) -> Box<dyn ConstraintState> {
            Box::new(Only(self.0))
        }
    }

    impl ConstraintState for Only {
        fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
            Ok(Some(TokenMask::from_words(vec![1], self.0)))
        }

        fn accept(&mut self, id: u32) -> Result<(), String> {
            if id == 0 { Ok(()) } else { Err("not that one".into()) }
        }
    }

    static LABELED: Tags = Tags {
        pairs: &[
            Tag { kind: SegmentKind::Query, open: "Q:", close: "\n" },
            Tag { kind: SegmentKind::Answer, open: "A:", close: "" },
        ],
        ..TAGS
    };

    const LABELS: [&str; 8] = ["{", "A:", "A", ":", ": x", "Q:", " ", "\n"];

    const TOKENS: [&str; 8] = ["{", "<", "answer", ">", ">{", "<answer>", "<answer>x", "<search>"];

    fn turn_of(tags: &Tags, tokens: &[&str]) -> Box<dyn ConstraintState> {
        let mut table = TokenBytes::new();
        tokens.iter().for_each(|token| table.push(token.as_bytes(), false));
        let tag = tags.pairs.iter().find(|tag| tag.kind == SegmentKind::Answer).unwrap();
        let marks = OpeningMarks::new(tag, tags, Arc::new(table));
        AnswerOpening::new(Arc::new(marks), Arc::new(Only(tokens.len()))).begin()
    }

    fn turn() -> Box<dyn ConstraintState> {
        turn_of(&TAGS, &TOKENS)
    }

    fn allowed(turn: &mut Box<dyn ConstraintState>) -> Vec<&'static str> {
        let mask = turn.allowed().unwrap();
        let allows = |id: &usize| mask.as_ref().is_none_or(|mask| mask.allows(*id as u32));
        (0..TOKENS.len()).filter(allows).map(|id| TOKENS[id]).collect()
    }

    #[test]
    fn the_answer_begins_with_a_token_of_its_own() {
        let mut turn = turn();
        assert_eq!(allowed(&mut turn), ["{", "<", "answer", ">", ">{", "<answer>", "<search>"]);
        turn.accept(1).unwrap();
        turn.accept(2).unwrap();
        assert_eq!(allowed(&mut turn), ["{", "<", "answer", ">", "<answer>", "<search>"], "`>{{` would run on");
        turn.accept(3).unwrap();
        assert_eq!(allowed(&mut turn), ["{"]);
        assert!(turn.accept(4).is_err());
    }

    #[test]
    fn labels_open_something_at_the_beginning_of_a_line() {
        let allows =
            |turn: &mut Box<dyn ConstraintState>, id: u32| turn.allowed().unwrap().is_none_or(|mask| mask.allows(id));
        // In the middle of a line neither label means anything, and no token runs past one.
        let mut turn = turn_of(&LABELED, &LABELS);
        for id in [0, 1, 5, 2] {
            turn.accept(id).unwrap();
            assert!(allows(&mut turn, 4));
        }
        for id in [7, 6, 2] {
            turn.accept(id).unwrap();
        }
        assert!(!allows(&mut turn, 4) && allows(&mut turn, 3) && allows(&mut turn, 6));
        turn.accept(3).unwrap();
        assert!(allows(&mut turn, 0) && !allows(&mut turn, 1), "the answer is held to its rule");
        let mut turn = turn_of(&LABELED, &LABELS);
        for id in [6, 5, 1] {
            turn.accept(id).unwrap();
        }
        assert!(turn.allowed().unwrap().is_none(), "a query is free");
    }

    proptest! {
        /// In any text, the constraint begins where the reader sees an answer, and a query stays free.
        #[test]
        fn it_opens_what_the_reader_reads(parts in prop::collection::vec(part(), 0..12), labeled: bool) {
            let tags = if labeled { &LABELED } else { &TAGS };
            let mut table = TokenBytes::new();
            (0..=255u8).for_each(|byte| table.push(&[byte], false));
            let tag = tags.pairs.iter().find(|tag| tag.kind == SegmentKind::Answer).unwrap();
            let marks = OpeningMarks::new(tag, tags, Arc::new(table));
            let AnswerOpening(rule) = AnswerOpening::new(Arc::new(marks), Arc::new(Only(256)));
            let frees = vec![0; rule.marks.frees.len()];
            let mut turn = OpeningProgress { rule, at: OpeningState::Before { opens: 0, frees, reader: None } };
            let mut scanner = Scanner::new(tags);
            let mut pieces = Vec::new();
            for c in parts.concat().chars() {
                for byte in c.to_string().bytes() {
                    turn.accept(u32::from(byte)).unwrap();
                }
                scanner.push(&c.to_string(), &mut pieces);
                let opened = match &turn.at {
                    OpeningState::Before { .. } => None,
                    OpeningState::Inside(_) => Some(SegmentKind::Answer),
                    OpeningState::Free => Some(SegmentKind::Query),
                };
                let read = Some(scanner.writing()).filter(|kind| matches!(kind, SegmentKind::Answer | SegmentKind::Query));
                prop_assert_eq!(opened, read);
                if opened.is_some() {
                    break;
                }
            }
        }
    }

    fn part() -> impl Strategy<Value = &'static str> {
        let parts =
            ["Q:", "A:", "A", ":", "\n", " ", "\t", "x", "\u{e9}", "<answer>", "<search>", "<think>", "<ans", "wer>"];
        prop::sample::select(parts.to_vec())
    }

    #[test]
    fn a_query_is_free() {
        let mut turn = turn();
        for id in [1, 7, 5, 3] {
            turn.accept(id).unwrap();
        }
        assert!(turn.allowed().unwrap().is_none());
    }
}
