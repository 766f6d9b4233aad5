//! Splits a sentence into phrases, verbs and the small words between them.

use super::lexicon::{self, WordTag};
use super::phrase::{Phrase, is_plain_verb, is_verbal, phrase};
use super::title_index::TitleIndex;
use super::token::WordToken;

/// Maximum number of tokens in one phrase or verb; longer ones are cut. Real prose never comes near this limit, which
/// bounds the work at each token.
const REACH: usize = 64;

/// Piece of a sentence, by token positions.
#[derive(Debug, Clone, Copy)]
pub(super) enum SentenceChunk {
    Phrase(Phrase),
    Verb(Verb),
    /// Preposition, or several in a row: `out of`.
    Preposition {
        start: usize,
        end: usize,
    },
    And,
    Comma,
    /// `who`, `which`, or `that` before a verb.
    Relative,
    /// Word that begins a clause with its own subject.
    Break,
    /// Text in brackets.
    Aside {
        start: usize,
        end: usize,
    },
}

/// Verb with its auxiliaries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verb {
    pub(super) start: usize,
    pub(super) end: usize,
    /// If `true`, the verb is only a form of `be`.
    pub(super) copula: bool,
    /// If `true`, the verb can be the main verb of a clause; otherwise it is a participle such as `starring`, or
    /// `directed` in `a film directed by`.
    pub(super) finite: bool,
}

/// Splits a sentence into chunks, skipping tokens that belong to none.
pub(super) fn chunks(tokens: &[WordToken<'_>], titles: &TitleIndex) -> Vec<SentenceChunk> {
    let mut chunks = Vec::with_capacity(tokens.len() / 2);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let (chunk, next) = match token.tag {
            WordTag::Open => {
                let end = tokens[at..]
                    .iter()
                    .position(|token| token.tag == WordTag::Close)
                    .map_or(tokens.len(), |past| at + past);
                (Some(SentenceChunk::Aside { start: at + 1, end }), end + 1)
            }
            WordTag::Comma => (Some(SentenceChunk::Comma), at + 1),
            WordTag::And => (Some(SentenceChunk::And), at + 1),
            WordTag::Relative => (Some(SentenceChunk::Relative), at + 1),
            WordTag::Determiner if token.text == "that" && at > 0 && verb(near(tokens, at), at + 1).is_some() => {
                (Some(SentenceChunk::Relative), at + 1)
            }
            WordTag::Subordinator | WordTag::Break | WordTag::Stop => (Some(SentenceChunk::Break), at + 1),
            WordTag::Name if at == 0 && begins_participle(tokens) => {
                (Some(SentenceChunk::Verb(Verb { start: 0, end: 1, copula: false, finite: false })), 1)
            }
            _ => content(near(tokens, at), at, titles),
        };
        chunks.extend(chunk);
        at = next;
    }
    chunks
}

/// Returns the tokens that a chunk at `at` may cover.
fn near<'t, 'a>(tokens: &'t [WordToken<'a>], at: usize) -> &'t [WordToken<'a>] {
    &tokens[..tokens.len().min(at + REACH)]
}

/// Recognizes a participle that opens a sentence: `Written by`, `Born in`.
fn begins_participle(tokens: &[WordToken<'_>]) -> bool {
    let word = tokens[0].text.to_lowercase();
    let next = tokens.get(1).map(|next| next.tag);
    match lexicon::open(&word) {
        WordTag::Verb => matches!(next, Some(WordTag::Preposition | WordTag::To | WordTag::And | WordTag::Comma)),
        WordTag::Gerund => {
            matches!(next, Some(WordTag::Preposition | WordTag::Name | WordTag::Article | WordTag::Quote))
        }
        _ => false,
    }
}

fn content(tokens: &[WordToken<'_>], at: usize, titles: &TitleIndex) -> (Option<SentenceChunk>, usize) {
    if let Some(verb) = verb(tokens, at) {
        return (Some(SentenceChunk::Verb(verb)), verb.end);
    }
    if let Some(phrase) = phrase(tokens, at, titles) {
        return (Some(SentenceChunk::Phrase(phrase)), phrase.end);
    }
    if matches!(tokens[at].tag, WordTag::Preposition | WordTag::To) {
        let run =
            tokens[at..].iter().take_while(|token| matches!(token.tag, WordTag::Preposition | WordTag::To)).count();
        return (Some(SentenceChunk::Preposition { start: at, end: at + run }), at + run);
    }
    (None, at + 1)
}

/// Reads the verb at `at` with everything that belongs to it.
fn verb(tokens: &[WordToken<'_>], at: usize) -> Option<Verb> {
    // Nothing beyond the slice is seen, which bounds the work per token of a sentence without end.
    let tag = |at: usize| tokens.get(at).map(|token| token.tag);
    let mut verb = Verb { start: at, end: at, copula: false, finite: false };
    let mut next = at;
    // Adverbs belong to a verb only if a verb follows.
    while tag(next) == Some(WordTag::Adverb) {
        next += 1;
    }
    loop {
        let word = tag(next)?;
        let modal = next > at && tag(next - 1) == Some(WordTag::Auxiliary) && !is_have(tokens[next - 1].text);
        let takes = match word {
            WordTag::Be => {
                verb.copula = verb.end == at || verb.copula || tag(next - 1) == Some(WordTag::Auxiliary);
                true
            }
            WordTag::Auxiliary | WordTag::Verb | WordTag::Gerund => {
                verb.copula = false;
                word != WordTag::Gerund || verb.end > at || !is_nominal(tokens, next)
            }
            WordTag::Present => is_verbal(tokens, next) || modal,
            // `would win`, `began to work`.
            WordTag::Noun
                if modal || follows_to(tokens, next) || is_plain_verb(tokens, next) || follows_that(tokens, next) =>
            {
                verb.copula = false;
                true
            }
            WordTag::To => verb.end > at && is_infinitive(tokens, next),
            WordTag::Adverb => {
                next += 1;
                if tag(next).is_some() { continue } else { false }
            }
            _ => false,
        };
        if !takes {
            break;
        }
        verb.finite |= matches!(word, WordTag::Be | WordTag::Auxiliary | WordTag::Present | WordTag::Noun)
            || (word == WordTag::Verb && tokens.get(next + 1).is_none_or(|after| after.text != "by"));
        next += 1;
        verb.end = next;
        if tag(next).is_none() {
            break;
        }
    }
    // `broke up`: the particle is part of the relation, not a preposition of the next phrase.
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

/// Recognizes a form in `-ing` that is a noun or stands before one: `recording artist`.
fn is_nominal(tokens: &[WordToken<'_>], at: usize) -> bool {
    tokens.get(at + 1).is_none_or(|next| {
        matches!(next.tag, WordTag::Comma | WordTag::Stop | WordTag::Verb | WordTag::Be | WordTag::Noun)
    })
}

fn follows_to(tokens: &[WordToken<'_>], at: usize) -> bool {
    at > 0 && tokens[at - 1].tag == WordTag::To && is_infinitive(tokens, at - 1)
}

/// Recognizes a verb after a relative word: `that help`, `which borders`.
fn follows_that(tokens: &[WordToken<'_>], at: usize) -> bool {
    at > 0 && matches!(tokens[at - 1].text, "that" | "which" | "who") && at + 1 < tokens.len() && {
        let determined = matches!(tokens[at + 1].tag, WordTag::Verb | WordTag::Be | WordTag::Auxiliary);
        !determined && !tokens[at].text.ends_with("al")
    }
}

/// Returns `true` if the `to` at `at` precedes a verb. An unknown word counts as a verb if the token after it begins
/// another phrase.
fn is_infinitive(tokens: &[WordToken<'_>], at: usize) -> bool {
    let tag = |at: usize| tokens.get(at).map(|token| token.tag);
    match tag(at + 1) {
        Some(WordTag::Be | WordTag::Auxiliary | WordTag::Verb) => true,
        Some(WordTag::Noun) => matches!(
            tag(at + 2),
            None | Some(
                WordTag::Article
                    | WordTag::Owner
                    | WordTag::Name
                    | WordTag::Determiner
                    | WordTag::Preposition
                    | WordTag::Pronoun
                    | WordTag::Number
                    | WordTag::Quote
                    | WordTag::To
            )
        ),
        _ => false,
    }
}
