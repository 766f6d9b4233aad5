//! A sentence as a row of phrases, verbs and the small words between them.

use super::lexicon::{self, Tag};
use super::phrase::{Phrase, is_plain_verb, is_verbal, phrase};
use super::title::Titles;
use super::token::Token;

/// Tokens that one phrase or verb is looked for in, at most; what is longer is cut there. Nothing that is written to be
/// read comes near it, and it bounds the work at each token of a text.
const REACH: usize = 64;

/// A piece of a sentence, by places in it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Chunk {
    Phrase(Phrase),
    Verb(Verb),
    /// A preposition, or several in a row: `out of`.
    Preposition {
        start: usize,
        end: usize,
    },
    And,
    Comma,
    /// `who`, `which`, `that` before a verb.
    Relative,
    /// Begins a clause with its own subject.
    Break,
    /// What stands in brackets.
    Aside {
        start: usize,
        end: usize,
    },
}

/// Verbs with their auxiliaries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verb {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Only a form of `be`.
    pub(super) copula: bool,
    /// Can stand as the verb of a clause of its own; otherwise `starring`, or `directed` of `a film directed by`.
    pub(super) finite: bool,
}

/// Cuts a sentence into chunks. What is none is passed over.
pub(super) fn chunks(tokens: &[Token<'_>], titles: &Titles) -> Vec<Chunk> {
    let mut chunks = Vec::with_capacity(tokens.len() / 2);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let (chunk, next) = match token.tag {
            Tag::Open => {
                let end = tokens[at..]
                    .iter()
                    .position(|token| token.tag == Tag::Close)
                    .map_or(tokens.len(), |past| at + past);
                (Some(Chunk::Aside { start: at + 1, end }), end + 1)
            }
            Tag::Comma => (Some(Chunk::Comma), at + 1),
            Tag::And => (Some(Chunk::And), at + 1),
            Tag::Relative => (Some(Chunk::Relative), at + 1),
            Tag::Determiner if token.text == "that" && at > 0 && verb(near(tokens, at), at + 1).is_some() => {
                (Some(Chunk::Relative), at + 1)
            }
            Tag::Subordinator | Tag::Break | Tag::Stop => (Some(Chunk::Break), at + 1),
            Tag::Name if at == 0 && begins_participle(tokens) => {
                (Some(Chunk::Verb(Verb { start: 0, end: 1, copula: false, finite: false })), 1)
            }
            _ => content(near(tokens, at), at, titles),
        };
        chunks.extend(chunk);
        at = next;
    }
    chunks
}

/// `tokens` as far as what begins at `at` may go.
fn near<'t, 'a>(tokens: &'t [Token<'a>], at: usize) -> &'t [Token<'a>] {
    &tokens[..tokens.len().min(at + REACH)]
}

/// `Written by`, `Born in`: a participle with the capital of its sentence.
fn begins_participle(tokens: &[Token<'_>]) -> bool {
    let word = tokens[0].text.to_lowercase();
    let next = tokens.get(1).map(|next| next.tag);
    match lexicon::open(&word) {
        Tag::Verb => matches!(next, Some(Tag::Preposition | Tag::To | Tag::And | Tag::Comma)),
        Tag::Gerund => matches!(next, Some(Tag::Preposition | Tag::Name | Tag::Article | Tag::Quote)),
        _ => false,
    }
}

fn content(tokens: &[Token<'_>], at: usize, titles: &Titles) -> (Option<Chunk>, usize) {
    if let Some(verb) = verb(tokens, at) {
        return (Some(Chunk::Verb(verb)), verb.end);
    }
    if let Some(phrase) = phrase(tokens, at, titles) {
        return (Some(Chunk::Phrase(phrase)), phrase.end);
    }
    if matches!(tokens[at].tag, Tag::Preposition | Tag::To) {
        let run = tokens[at..].iter().take_while(|token| matches!(token.tag, Tag::Preposition | Tag::To)).count();
        return (Some(Chunk::Preposition { start: at, end: at + run }), at + run);
    }
    (None, at + 1)
}

/// The verb that begins at `at`, with everything that belongs to it up to its last word.
fn verb(tokens: &[Token<'_>], at: usize) -> Option<Verb> {
    let tag = |at: usize| tokens.get(at).map(|token| token.tag);
    let mut verb = Verb { start: at, end: at, copula: false, finite: false };
    let mut next = at;
    // Adverbs belong to a verb only if one follows.
    while tag(next) == Some(Tag::Adverb) {
        next += 1;
    }
    loop {
        let word = tag(next)?;
        let modal = next > at && tag(next - 1) == Some(Tag::Auxiliary) && !is_have(tokens[next - 1].text);
        let takes = match word {
            Tag::Be => {
                verb.copula = verb.end == at || verb.copula || tag(next - 1) == Some(Tag::Auxiliary);
                true
            }
            Tag::Auxiliary | Tag::Verb | Tag::Gerund => {
                verb.copula = false;
                word != Tag::Gerund || verb.end > at || !is_nominal(tokens, next)
            }
            Tag::Present => is_verbal(tokens, next) || modal,
            // `would win`, `began to work`.
            Tag::Noun
                if modal || follows_to(tokens, next) || is_plain_verb(tokens, next) || follows_that(tokens, next) =>
            {
                verb.copula = false;
                true
            }
            Tag::To => verb.end > at && is_infinitive(tokens, next),
            Tag::Adverb => {
                next += 1;
                if tag(next).is_some() { continue } else { false }
            }
            _ => false,
        };
        if !takes {
            break;
        }
        verb.finite |= matches!(word, Tag::Be | Tag::Auxiliary | Tag::Present | Tag::Noun)
            || (word == Tag::Verb && tokens.get(next + 1).is_none_or(|after| after.text != "by"));
        next += 1;
        verb.end = next;
        if tag(next).is_none() {
            break;
        }
    }
    while verb.end > at
        && matches!(tokens.get(verb.end).map(|token| token.text), Some("up" | "down" | "out" | "away" | "back"))
    {
        verb.end += 1;
    }
    (verb.end > at).then_some(verb)
}

fn is_have(word: &str) -> bool {
    matches!(word, "has" | "have" | "had" | "having" | "Has" | "Had" | "Having")
}

/// A form in `-ing` before a noun: `recording artist`.
fn is_nominal(tokens: &[Token<'_>], at: usize) -> bool {
    tokens.get(at + 1).is_none_or(|next| matches!(next.tag, Tag::Comma | Tag::Stop | Tag::Verb | Tag::Be | Tag::Noun))
}

fn follows_to(tokens: &[Token<'_>], at: usize) -> bool {
    at > 0 && tokens[at - 1].tag == Tag::To && is_infinitive(tokens, at - 1)
}

/// `that help`, `which borders`.
fn follows_that(tokens: &[Token<'_>], at: usize) -> bool {
    at > 0 && matches!(tokens[at - 1].text, "that" | "which" | "who") && at + 1 < tokens.len() && {
        let determined = matches!(tokens[at + 1].tag, Tag::Verb | Tag::Be | Tag::Auxiliary);
        !determined && !tokens[at].text.ends_with("al")
    }
}

/// Whether `to` at `at` stands before a verb: what follows that verb is no part of a noun phrase with it.
fn is_infinitive(tokens: &[Token<'_>], at: usize) -> bool {
    let tag = |at: usize| tokens.get(at).map(|token| token.tag);
    match tag(at + 1) {
        Some(Tag::Be | Tag::Auxiliary | Tag::Verb) => true,
        Some(Tag::Noun) => matches!(
            tag(at + 2),
            None | Some(
                Tag::Article
                    | Tag::Owner
                    | Tag::Name
                    | Tag::Determiner
                    | Tag::Preposition
                    | Tag::Pronoun
                    | Tag::Number
                    | Tag::Quote
                    | Tag::To
            )
        ),
        _ => false,
    }
}
