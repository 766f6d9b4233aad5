//! Noun phrases: names, quoted works, dates, common nouns.

use super::date::date;
use super::lexicon::{WordTag, is_particle};
use super::title_index::TitleIndex;
use super::token::WordToken;

/// Kind of thing that a noun phrase names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PhraseKind {
    /// Phrase that ends in a name, a title or a quoted work.
    Name,
    /// Phrase that ends in a common noun.
    Thing,
    Date,
    Number,
    Pronoun,
}

/// Noun phrase, by token positions in its sentence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Phrase {
    pub(super) kind: PhraseKind,
    /// First token after articles and possessors.
    pub(super) start: usize,
    /// Position after the last token.
    pub(super) end: usize,
    /// Start of the name in the phrase, if it ends in one.
    pub(super) name: usize,
    /// Owner before the phrase: the token `his`, or the tokens before `'s`.
    pub(super) owner: Option<(usize, usize)>,
    /// If `true`, the phrase begins with `the`, `this` or similar.
    pub(super) definite: bool,
    /// If `true`, the phrase begins with any article or determiner.
    pub(super) determined: bool,
    /// If `true`, the name in the phrase is a title of the corpus.
    pub(super) titled: bool,
}

impl Phrase {
    /// Tokens before the name: `singer` in `singer Marvin Gaye`.
    pub(super) fn role(&self) -> Option<(usize, usize)> {
        (self.kind == PhraseKind::Name && self.name > self.start).then_some((self.start, self.name))
    }
}

/// Reads the phrase at `at`. `None` if none begins there.
pub(super) fn phrase(tokens: &[WordToken<'_>], at: usize, titles: &TitleIndex) -> Option<Phrase> {
    let first = tokens.get(at)?;
    let mut phrase = Phrase {
        kind: PhraseKind::Thing,
        start: at,
        end: at,
        name: at,
        owner: None,
        definite: false,
        determined: false,
        titled: false,
    };
    if first.tag == WordTag::Pronoun {
        return Some(Phrase { kind: PhraseKind::Pronoun, end: at + 1, ..phrase });
    }
    let titled = title(tokens, at, titles);
    if titled == 0 {
        phrase.determine(tokens);
    }
    if let Some(length) = date(&tokens[phrase.start..]) {
        return Some(Phrase { kind: PhraseKind::Date, end: phrase.start + length, ..phrase });
    }
    phrase.end = phrase.start;
    phrase.name = phrase.start;
    while let Some(next) = phrase.step(tokens, titles) {
        phrase.end = next;
    }
    (phrase.end > phrase.start).then_some(phrase)
}

impl Phrase {
    /// Skips articles, determiners and owners.
    fn determine(&mut self, tokens: &[WordToken<'_>]) {
        while let Some(token) = tokens.get(self.start) {
            match token.tag {
                WordTag::Article => self.definite |= token.text.eq_ignore_ascii_case("the"),
                WordTag::Determiner if is_demonstrative(token.text) => self.definite = true,
                WordTag::Owner => self.owner = Some((self.start, self.start + 1)),
                _ => break,
            }
            self.determined = true;
            self.start += 1;
        }
    }

    /// Extends the phrase by one piece. Returns the position after it, or `None` if the phrase ends.
    fn step(&mut self, tokens: &[WordToken<'_>], titles: &TitleIndex) -> Option<usize> {
        let at = self.end;
        let token = tokens.get(at)?;
        let length = title(tokens, at, titles);
        if length > 0 {
            self.enter_name(tokens, at);
            // `Bosonid Boso the Elder`: a title of several words is a complete name, so the name begins with the title.
            if length > 1 && tokens[at - usize::from(at > self.start)].tag == WordTag::Name {
                self.name = at;
            }
            self.titled = true;
            return Some(at + length);
        }
        match token.tag {
            WordTag::Quote => {
                let length = tokens[at..].iter().take(24).position(|token| token.tag == WordTag::Unquote)?;
                self.enter_name(tokens, at);
                Some(at + length + 1)
            }
            WordTag::Name => {
                self.enter_name(tokens, at);
                Some(at + 1)
            }
            WordTag::Number => {
                if self.end == self.start || self.kind != PhraseKind::Name {
                    self.kind = PhraseKind::Number;
                }
                Some(at + 1)
            }
            WordTag::Noun if is_inside_name(tokens, at) => Some(at + 1),
            WordTag::Noun if self.end > self.start && is_plain_verb(tokens, at) => None,
            WordTag::Noun => self.common(at),
            WordTag::Determiner if !is_demonstrative(token.text) => self.common(at),
            WordTag::Present | WordTag::Gerund | WordTag::Verb | WordTag::Adverb => self.adjective(tokens, at),
            WordTag::Possessive => self.possess(tokens, at),
            _ => self.connect(tokens, at),
        }
    }

    fn enter_name(&mut self, tokens: &[WordToken<'_>], at: usize) {
        if self.kind != PhraseKind::Name || at == self.start {
            // In `2016 Cannes Film Festival` the year belongs to the name.
            let year = self.kind == PhraseKind::Number && at > self.start && tokens[at - 1].tag == WordTag::Number;
            self.name = if year { at - 1 } else { at };
        }
        self.kind = PhraseKind::Name;
    }

    fn common(&mut self, at: usize) -> Option<usize> {
        self.kind = PhraseKind::Thing;
        self.titled = false;
        Some(at + 1)
    }

    /// Extends the phrase by verb forms and adverbs used before a noun after an article: `an animated series`.
    fn adjective(&mut self, tokens: &[WordToken<'_>], at: usize) -> Option<usize> {
        let next = tokens.get(at + 1)?;
        let token = &tokens[at];
        let opens = at == self.start && self.determined;
        let inner = at > self.start
            && matches!(tokens[at - 1].tag, WordTag::Noun | WordTag::Adverb | WordTag::Number | WordTag::Verb);
        let modified = at > self.start && tokens[at - 1].tag == WordTag::Adverb;
        let noun = matches!(next.tag, WordTag::Noun | WordTag::Name);
        let holds = match token.tag {
            WordTag::Adverb => opens && matches!(next.tag, WordTag::Noun | WordTag::Verb | WordTag::Gerund),
            WordTag::Verb => noun && (opens || (self.determined && modified)),
            WordTag::Gerund => (opens || inner) && next.tag == WordTag::Noun,
            _ => opens || (self.determined && inner && !is_verbal(tokens, at)),
        };
        if holds { self.common(at) } else { None }
    }

    /// Handles `'s`: the phrase so far becomes the owner of the words after it.
    fn possess(&mut self, tokens: &[WordToken<'_>], at: usize) -> Option<usize> {
        let follows = tokens.get(at + 1).is_some_and(|next| {
            matches!(
                next.tag,
                WordTag::Noun
                    | WordTag::Name
                    | WordTag::Number
                    | WordTag::Quote
                    | WordTag::Determiner
                    | WordTag::Gerund
                    | WordTag::Verb
                    | WordTag::Present
            )
        });
        // `'s` before anything else is the verb: `Anna's back`.
        if self.end == self.start || !follows {
            return None;
        }
        let owner = if self.kind == PhraseKind::Name { self.name } else { self.start };
        let past = at + 1;
        *self = Phrase {
            kind: PhraseKind::Thing,
            start: past,
            end: past,
            name: past,
            owner: Some((owner, at)),
            definite: true,
            determined: true,
            titled: false,
        };
        Some(past)
    }

    /// Extends the phrase by small words inside names: `University of Copenhagen`, `Leonardo da Vinci`, `Simon &
    /// Garfunkel`.
    fn connect(&mut self, tokens: &[WordToken<'_>], at: usize) -> Option<usize> {
        if self.kind != PhraseKind::Name || at == self.start {
            return None;
        }
        let named = |at: usize| tokens.get(at).is_some_and(|token| token.tag == WordTag::Name);
        match tokens[at].text {
            // After a name only: in `king of Spain` the words around `of` are two phrases.
            "of" if named(at + 1) && tokens[at - 1].tag == WordTag::Name => Some(at + 2),
            "of" if tokens.get(at + 1).is_some_and(|next| next.text == "the") && named(at + 2) => Some(at + 3),
            "the" if named(at + 1) && tokens[at - 1].tag == WordTag::Name => Some(at + 2),
            "&" if named(at + 1) => Some(at + 2),
            // `Commission Against Corruption`.
            word if word.starts_with(char::is_uppercase) && (2..=64).contains(&word.len()) && named(at + 1) => {
                Some(at + 2)
            }
            _ => None,
        }
    }
}

/// Returns `true` if the word at `at`, which can be a verb or a noun, is a verb there.
pub(super) fn is_verbal(tokens: &[WordToken<'_>], at: usize) -> bool {
    let after = tokens.get(at + 1).is_some_and(|next| {
        matches!(
            next.tag,
            WordTag::Article
                | WordTag::Name
                | WordTag::Owner
                | WordTag::Preposition
                | WordTag::To
                | WordTag::Quote
                | WordTag::Determiner
        )
    });
    let before = at.checked_sub(1).is_none_or(|before| {
        matches!(
            tokens[before].tag,
            WordTag::Name
                | WordTag::Noun
                | WordTag::Pronoun
                | WordTag::Close
                | WordTag::Unquote
                | WordTag::Relative
                | WordTag::And
                | WordTag::Comma
                | WordTag::Adverb
                | WordTag::Determiner
        )
    });
    after && before
}

/// Returns `true` if the unknown word at `at` is a verb of the present tense: `the area experiences the`.
pub(super) fn is_plain_verb(tokens: &[WordToken<'_>], at: usize) -> bool {
    let word = tokens[at].text;
    let form = word.len() > 3
        && word.ends_with('s')
        // `class`, `campus` and `analysis` are nouns.
        && !word.ends_with("ss")
        && !word.ends_with("us")
        && !word.ends_with("is");
    let Some(next) = tokens.get(at + 1) else { return false };
    let before = at.checked_sub(1).map(|before| tokens[before].tag);
    form && matches!(next.tag, WordTag::Article | WordTag::Owner | WordTag::Quote)
        && matches!(
            before,
            Some(
                WordTag::Noun
                    | WordTag::Name
                    | WordTag::Pronoun
                    | WordTag::Relative
                    | WordTag::Unquote
                    | WordTag::Close
            )
        )
}

/// Returns the number of tokens at `at` that form a title of the corpus and may refer to its subject.
fn title(tokens: &[WordToken<'_>], at: usize, titles: &TitleIndex) -> usize {
    let length = titles.longest(&tokens[at..]);
    let matched = &tokens[at..at + length];
    let names = matched.iter().filter(|token| token.tag == WordTag::Name).count();
    let Some(next) = tokens.get(at + length) else { return if names > 0 { length } else { 0 } };
    // `New York Times` does not mention `New York`.
    let goes_on = next.tag == WordTag::Name && matched.last().is_some_and(|last| last.tag == WordTag::Name);
    // A title without a name in it, such as `Up`, may be ordinary words.
    let plain = names == 0 || (length == 1 && matched[0].tag != WordTag::Name);
    if plain || goes_on { 0 } else { length }
}

fn is_demonstrative(word: &str) -> bool {
    ["this", "that", "these", "those", "some", "any", "each", "every", "such", "both", "either", "all", "another"]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
}

/// Returns `true` if the particle at `at`, which is tagged as a noun, is inside a name.
fn is_inside_name(tokens: &[WordToken<'_>], at: usize) -> bool {
    let Some(token) = tokens.get(at) else { return false };
    is_particle(token.text)
        && at > 0
        && (tokens[at - 1].tag == WordTag::Name || is_particle(tokens[at - 1].text))
        && tokens[at + 1..].iter().take(2).any(|next| next.tag == WordTag::Name)
}
