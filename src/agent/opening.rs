//! A turn that is free until its answer begins, and held to a rule from there. Labels begin something at the beginning of a
//! line alone, as they do for whoever reads the turn.

use std::sync::Arc;

use waymark_models::sampler::TokenMask;
use waymark_models::tokenizer::TokenBytes;

use super::protocol::{Kind, Tag, Tags};
use crate::engine::{Constraint, Follow, Label, Stop};

/// The rule of a tagged turn: anything up to the tag that opens an answer, then what an answer must be. A query is never
/// an answer, whatever it holds.
#[derive(Debug, Clone)]
pub(super) struct Opening(Arc<Rule>);

#[derive(Debug)]
struct Rule {
    marks: Arc<Marks>,
    answer: Arc<dyn Constraint>,
}

/// The tags that say what is free and what is not, in a vocabulary: the same for whatever answers must be.
#[derive(Debug)]
pub(super) struct Marks {
    tokens: Arc<TokenBytes>,
    opens: Mark,
    /// Tags after which nothing is held to anything.
    frees: Vec<Mark>,
    /// By the state of the opening tag: the tokens that do not complete it and go on. What stands behind the tag in the same
    /// token could not be held to the rule; the tag's own end is always a token as well.
    masks: Vec<Option<TokenMask>>,
}

/// What opens something, found byte by byte.
#[derive(Debug)]
enum Mark {
    Tag(Stop),
    Label(Label),
}

impl Mark {
    fn of(tag: &Tag) -> Mark {
        if tag.is_label() {
            Mark::Label(Label::new(tag.open.as_bytes()))
        } else {
            Mark::Tag(Stop::new(tag.open.as_bytes()))
        }
    }

    /// How many states there are before it is complete; the first is 0.
    fn states(&self) -> usize {
        match self {
            Mark::Tag(tag) => tag.len(),
            Mark::Label(label) => label.states(),
        }
    }

    /// The state after one more byte; none where it is complete.
    fn advance(&self, state: usize, byte: u8) -> Option<usize> {
        match self {
            Mark::Tag(tag) => Some(tag.advance(state, byte)).filter(|matched| *matched < tag.len()),
            Mark::Label(label) => label.advance(state, byte),
        }
    }
}

impl Marks {
    /// Of answers that `tag` opens. Looks at the whole vocabulary.
    pub(super) fn new(tag: &Tag, tags: &Tags, tokens: Arc<TokenBytes>) -> Marks {
        let opens = Mark::of(tag);
        let frees = tags.pairs.iter().filter(|tag| tag.kind == Kind::Query).map(Mark::of).collect();
        let masks = (0..opens.states()).map(|state| mask(&opens, state, &tokens)).collect();
        Marks { tokens, opens, frees, masks }
    }
}

impl Opening {
    /// Holds what follows the opening tag to `answer`.
    pub(super) fn new(marks: Arc<Marks>, answer: Arc<dyn Constraint>) -> Opening {
        Opening(Arc::new(Rule { marks, answer }))
    }
}

/// All tokens but those that complete `tag` before their end, in a text that is in this state.
fn mask(tag: &Mark, state: usize, tokens: &TokenBytes) -> Option<TokenMask> {
    let overruns = |id: &u32| {
        let (bytes, mut state) = (tokens.get(*id), Some(state));
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

impl Constraint for Opening {
    fn begin(&self) -> Box<dyn Follow> {
        let frees = vec![0; self.0.marks.frees.len()];
        Box::new(Turn { rule: Arc::clone(&self.0), at: Place::Before { opens: 0, frees } })
    }
}

#[derive(Debug)]
struct Turn {
    rule: Arc<Rule>,
    at: Place,
}

#[derive(Debug)]
enum Place {
    /// The state of each tag.
    Before {
        opens: usize,
        frees: Vec<usize>,
    },
    Inside(Box<dyn Follow>),
    Free,
}

impl Follow for Turn {
    fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
        match &mut self.at {
            Place::Before { opens, .. } => Ok(self.rule.marks.masks[*opens].clone()),
            Place::Inside(answer) => answer.allowed(),
            Place::Free => Ok(None),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), String> {
        let Turn { rule, at } = self;
        let (opens, frees) = match at {
            Place::Inside(answer) => return answer.accept(id),
            Place::Free => return Ok(()),
            Place::Before { opens, frees } => (opens, frees),
        };
        for &byte in rule.marks.tokens.get(id) {
            let Some(state) = rule.marks.opens.advance(*opens, byte) else {
                self.at = Place::Inside(rule.answer.begin());
                return Ok(());
            };
            *opens = state;
            for (tag, state) in rule.marks.frees.iter().zip(frees.iter_mut()) {
                let Some(next) = tag.advance(*state, byte) else {
                    self.at = Place::Free;
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

    use super::super::scanner::Scanner;
    use super::super::tag::TAGS;
    use super::*;

    /// Allows the token 0 alone.
    #[derive(Debug)]
    struct Only(usize);

    impl Constraint for Only {
        fn begin(&self) -> Box<dyn Follow> {
            Box::new(Only(self.0))
        }
    }

    impl Follow for Only {
        fn allowed(&mut self) -> Result<Option<TokenMask>, String> {
            Ok(Some(TokenMask::from_words(vec![1], self.0)))
        }

        fn accept(&mut self, id: u32) -> Result<(), String> {
            if id == 0 { Ok(()) } else { Err("not that one".into()) }
        }
    }

    static LABELLED: Tags = Tags {
        pairs: &[Tag { kind: Kind::Query, open: "Q:", close: "\n" }, Tag { kind: Kind::Answer, open: "A:", close: "" }],
        ..TAGS
    };

    const LABELS: [&str; 8] = ["{", "A:", "A", ":", ": x", "Q:", " ", "\n"];

    const TOKENS: [&str; 8] = ["{", "<", "answer", ">", ">{", "<answer>", "<answer>x", "<search>"];

    fn turn_of(tags: &Tags, tokens: &[&str]) -> Box<dyn Follow> {
        let mut table = TokenBytes::new();
        tokens.iter().for_each(|token| table.push(token.as_bytes(), false));
        let tag = tags.pairs.iter().find(|tag| tag.kind == Kind::Answer).unwrap();
        let marks = Marks::new(tag, tags, Arc::new(table));
        Opening::new(Arc::new(marks), Arc::new(Only(tokens.len()))).begin()
    }

    fn turn() -> Box<dyn Follow> {
        turn_of(&TAGS, &TOKENS)
    }

    fn allowed(turn: &mut Box<dyn Follow>) -> Vec<&'static str> {
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
        let allows = |turn: &mut Box<dyn Follow>, id: u32| turn.allowed().unwrap().is_none_or(|mask| mask.allows(id));
        // In the middle of a line neither label means anything, and no token runs past one.
        let mut turn = turn_of(&LABELLED, &LABELS);
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
        let mut turn = turn_of(&LABELLED, &LABELS);
        for id in [6, 5, 1] {
            turn.accept(id).unwrap();
        }
        assert!(turn.allowed().unwrap().is_none(), "a query is free");
    }

    proptest! {
        /// In any text an answer is held to its rule, and a query is free, from where the reader reads one.
        #[test]
        fn it_opens_what_the_reader_reads(parts in prop::collection::vec(part(), 0..12), labelled: bool) {
            let tags = if labelled { &LABELLED } else { &TAGS };
            let mut table = TokenBytes::new();
            (0..=255u8).for_each(|byte| table.push(&[byte], false));
            let tag = tags.pairs.iter().find(|tag| tag.kind == Kind::Answer).unwrap();
            let marks = Marks::new(tag, tags, Arc::new(table));
            let Opening(rule) = Opening::new(Arc::new(marks), Arc::new(Only(256)));
            let frees = vec![0; rule.marks.frees.len()];
            let mut turn = Turn { rule, at: Place::Before { opens: 0, frees } };
            let (mut scanner, mut pieces) = (Scanner::new(tags), Vec::new());
            for c in parts.concat().chars() {
                for byte in c.to_string().bytes() {
                    turn.accept(u32::from(byte)).unwrap();
                }
                scanner.push(&c.to_string(), &mut pieces);
                let opened = match &turn.at {
                    Place::Before { .. } => None,
                    Place::Inside(_) => Some(Kind::Answer),
                    Place::Free => Some(Kind::Query),
                };
                let read = Some(scanner.writing()).filter(|kind| matches!(kind, Kind::Answer | Kind::Query));
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
