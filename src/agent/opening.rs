//! A turn that is free until its answer begins, and held to a rule from there.

use std::sync::Arc;

use waymark_models::sampler::TokenMask;
use waymark_models::tokenizer::TokenBytes;

use super::protocol::{Kind, Tag, Tags};
use crate::engine::{Constraint, Follow, Stop};

/// The rule of a tagged turn: anything up to the tag that opens an answer, then what an answer must be. A query is never
/// an answer, whatever it holds.
#[derive(Debug, Clone)]
pub(super) struct Opening(Arc<Rule>);

#[derive(Debug)]
struct Rule {
    tokens: Arc<TokenBytes>,
    opens: Stop,
    /// Tags after which nothing is held to anything.
    frees: Vec<Stop>,
    /// By how much of the opening tag is there: the tokens that do not complete it and go on. What stands behind the tag in
    /// the same token could not be held to the rule; the tag's own end is always a token as well.
    masks: Vec<Option<TokenMask>>,
    answer: Arc<dyn Constraint>,
}

impl Opening {
    /// Holds what follows the opening `tag` to `answer`.
    pub(super) fn new(tag: &Tag, tags: &Tags, tokens: Arc<TokenBytes>, answer: Arc<dyn Constraint>) -> Opening {
        let opens = Stop::new(tag.open.as_bytes());
        let queries = tags.pairs.iter().filter(|tag| tag.kind == Kind::Query);
        let frees = queries.map(|tag| Stop::new(tag.open.as_bytes())).collect();
        let masks = (0..opens.len()).map(|matched| mask(&opens, matched, &tokens)).collect();
        Opening(Arc::new(Rule { tokens, opens, frees, masks, answer }))
    }
}

/// All tokens but those that complete `tag` before their end, where `matched` bytes of it are there.
fn mask(tag: &Stop, matched: usize, tokens: &TokenBytes) -> Option<TokenMask> {
    let overruns = |id: &u32| {
        let (bytes, mut matched) = (tokens.get(*id), matched);
        bytes.iter().enumerate().any(|(at, &byte)| {
            matched = tag.advance(matched, byte);
            let complete = matched == tag.len();
            matched = if complete { 0 } else { matched };
            complete && at + 1 < bytes.len()
        })
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
        let frees = vec![0; self.0.frees.len()];
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
    /// How much of each tag is there.
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
            Place::Before { opens, .. } => Ok(self.rule.masks[*opens].clone()),
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
        for &byte in rule.tokens.get(id) {
            *opens = rule.opens.advance(*opens, byte);
            if *opens == rule.opens.len() {
                self.at = Place::Inside(rule.answer.begin());
                return Ok(());
            }
            for (tag, matched) in rule.frees.iter().zip(frees.iter_mut()) {
                *matched = tag.advance(*matched, byte);
                if *matched == tag.len() {
                    self.at = Place::Free;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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

    const TOKENS: [&str; 8] = ["{", "<", "answer", ">", ">{", "<answer>", "<answer>x", "<search>"];

    fn turn() -> Box<dyn Follow> {
        let mut table = TokenBytes::new();
        TOKENS.iter().for_each(|token| table.push(token.as_bytes(), false));
        let tag = TAGS.pairs.iter().find(|tag| tag.kind == Kind::Answer).unwrap();
        Opening::new(tag, &TAGS, Arc::new(table), Arc::new(Only(TOKENS.len()))).begin()
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
    fn a_query_is_free() {
        let mut turn = turn();
        for id in [1, 7, 5, 3] {
            turn.accept(id).unwrap();
        }
        assert!(turn.allowed().unwrap().is_none());
    }
}
