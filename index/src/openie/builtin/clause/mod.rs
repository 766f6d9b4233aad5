//! Extracts the statements of one sentence, clause by clause.

mod naming;
mod words;

use self::words::{is_auxiliary, is_kin, is_particle, join};
use super::UniqueTriples;
use super::brackets;
use super::chunk::{SentenceChunk, Verb};
use super::lexicon::WordTag;
use super::phrase::{Phrase, PhraseKind};
use super::referent::Referents;
use super::token::WordToken;
use crate::triple::Triple;

/// Maximum bytes of verbs joined by `and`, or of nouns joined by `of`, before nothing more is joined.
const LONGEST_JOINED: usize = 256;
/// Maximum number of tokens read in brackets.
const LONGEST_ASIDE: usize = 256;

/// Connection of a phrase to the one before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Link {
    #[default]
    None,
    Comma,
    And,
}

/// Reader of one sentence.
pub(super) struct Clauses<'p, 'a> {
    /// Cleaned text of the passage.
    pub(super) text: &'a str,
    /// Tokens of the sentence.
    pub(super) tokens: &'p [WordToken<'a>],
    pub(super) chunks: &'p [SentenceChunk],
    /// If `true`, the sentence is the first of its passage.
    pub(super) first: bool,
    pub(super) referents: &'p mut Referents,
    pub(super) triples: &'p mut UniqueTriples,
    state: ClauseState,
}

/// State of the clause being read.
#[derive(Debug, Default)]
struct ClauseState {
    subjects: Vec<String>,
    /// Aspect of the subject under discussion: `father` in `Her father was`.
    facet: String,
    /// If `true`, the subject is a common noun rather than a name, so a phrase after `of` may replace it.
    thing: bool,
    /// Phrases before the subject, each with the words that connect it to the verb.
    opening: Vec<(String, String)>,
    /// Verb. `None` before it has been read.
    verb: Option<String>,
    copula: bool,
    /// Head of the last object if it is a common noun, with its preposition.
    noun: String,
    /// If `true`, that noun is a direct object: `received independence`.
    direct: bool,
    preposition: Option<String>,
    /// Relation of the last object, reused for objects listed after it.
    relation: String,
    /// Last object.
    object: Option<String>,
    named: bool,
    /// Owner and noun of the last possessive phrase: `his wife`.
    owned: Option<(String, String)>,
    /// If `true`, the last object is a date or a number.
    dated: bool,
    link: Link,
    /// Subjects to return to after an embedded clause.
    outer: Option<Vec<String>>,
    relative: bool,
}

impl<'p, 'a> Clauses<'p, 'a> {
    /// Prepares to read the sentence `tokens` of `text`, split into `chunks`.
    pub(super) fn new(
        text: &'a str,
        tokens: &'p [WordToken<'a>],
        chunks: &'p [SentenceChunk],
        first: bool,
        referents: &'p mut Referents,
        triples: &'p mut UniqueTriples,
    ) -> Clauses<'p, 'a> {
        Clauses { text, tokens, chunks, first, referents, triples, state: ClauseState::default() }
    }

    /// Reads the sentence to its end.
    pub(super) fn read(mut self) {
        for at in 0..self.chunks.len() {
            match self.chunks[at] {
                SentenceChunk::Phrase(phrase) => self.phrase(phrase, at),
                SentenceChunk::Verb(verb) => self.verb(verb, at),
                SentenceChunk::Preposition { start, end } => {
                    self.state.preposition = Some(self.slice(start, end).to_lowercase());
                    self.state.link = Link::None;
                }
                SentenceChunk::And => self.state.link = Link::And,
                SentenceChunk::Comma => {
                    if self.state.link == Link::None {
                        self.state.link = Link::Comma;
                    }
                }
                SentenceChunk::Relative => self.relative(),
                // `Tahaan – A Boy With a Grenade is`.
                SentenceChunk::Break if self.first && self.state.verb.is_none() && !self.state.subjects.is_empty() => {}
                SentenceChunk::Break => self.close(),
                SentenceChunk::Aside { start, end } => self.aside(start, end),
            }
        }
        self.close();
    }

    /// Ends a clause. A clause without a subject describes the title: `Born in Paris.`
    fn close(&mut self) {
        let state = std::mem::take(&mut self.state);
        if state.subjects.is_empty() {
            let title = self.referents.title().to_owned();
            for (words, object) in state.opening.iter().filter(|(words, _)| words.contains(' ')) {
                self.emit(&title, words, object);
            }
        }
    }

    fn phrase(&mut self, phrase: Phrase, at: usize) {
        let link = std::mem::take(&mut self.state.link);
        self.relate_role(phrase);
        let Some(text) = self.resolve(phrase) else {
            self.state.preposition = None;
            return;
        };
        let owned = self.state.owned.take();
        if phrase.kind == PhraseKind::Thing {
            self.state.owned = phrase.owner.and_then(|owner| self.owner(owner)).map(|owner| (owner, text.clone()));
        }
        if let (Some((owner, thing)), Link::Comma, PhraseKind::Name) = (owned, link, phrase.kind) {
            // `his wife, Anna Gordy, wrote`.
            self.emit(&owner, &thing, &text);
            if self.state.verb.is_none() && self.state.preposition.is_none() {
                return self.begin(phrase, text);
            }
        }
        if self.state.relative && self.state.verb.is_none() && self.state.preposition.is_none() {
            // `which he wrote`.
            let antecedent = self.state.subjects.first().cloned().unwrap_or_default();
            self.state.opening.push((String::new(), antecedent));
            self.state.relative = false;
            return self.begin(phrase, text);
        }
        if self.state.subjects.is_empty() {
            return self.open(phrase, text, link, at);
        }
        if self.state.verb.is_none() {
            return self.extend_subject(phrase, text, link);
        }
        if link != Link::None && self.is_followed_by_verb(at) && self.state.preposition.is_none() {
            self.state = ClauseState::default();
            return self.begin(phrase, text);
        }
        self.object(phrase, text, link, at);
    }

    /// Handles a phrase before the subject.
    fn open(&mut self, phrase: Phrase, text: String, link: Link, at: usize) {
        let verb = self.state.verb.take();
        let preposition = self.state.preposition.take();
        if verb.is_none() && preposition.is_none() {
            let listed = self.state.opening.last().filter(|_| link != Link::None && !self.is_followed_by_verb(at));
            return match listed.map(|(words, _)| words.clone()) {
                Some(words) => self.state.opening.push((words, text)),
                None => self.begin(phrase, text),
            };
        }
        let words = [verb.unwrap_or_default(), preposition.unwrap_or_default()];
        self.state.opening.push((words.join(" ").trim().to_owned(), text));
    }

    /// Makes `phrase` the subject.
    fn begin(&mut self, phrase: Phrase, text: String) {
        self.state.thing = phrase.kind == PhraseKind::Thing;
        self.state.facet.clear();
        self.state.verb = None;
        let owner = phrase.owner.filter(|_| phrase.kind == PhraseKind::Thing).and_then(|owner| self.owner(owner));
        let text = match owner {
            Some(owner) => {
                self.state.facet = text;
                owner
            }
            // `the climate is` in a text about a city is a statement about the city.
            None if phrase.kind == PhraseKind::Thing && !text.eq_ignore_ascii_case(self.referents.title()) => {
                self.state.facet = text;
                self.referents.title().to_owned()
            }
            None => text,
        };
        if phrase.kind == PhraseKind::Name {
            self.referents.turn(&text);
        }
        self.state.object = None;
        self.state.subjects = vec![text];
    }

    /// Handles a phrase between subject and verb.
    fn extend_subject(&mut self, phrase: Phrase, text: String, link: Link) {
        match (self.state.preposition.take(), link) {
            (Some(preposition), _) if preposition == "of" && self.state.thing => {
                let subject = std::mem::replace(&mut self.state.subjects, vec![text]).pop().unwrap_or_default();
                let thing = if self.state.facet.is_empty() { subject } else { std::mem::take(&mut self.state.facet) };
                self.state.facet = if thing.len() < LONGEST_JOINED { format!("{thing} of") } else { thing };
                self.state.thing = phrase.kind == PhraseKind::Thing;
            }
            (Some(_), _) => {}
            (None, Link::Comma) if phrase.determined || phrase.kind == PhraseKind::Thing => {
                let subject = self.state.subjects[0].clone();
                self.emit(&subject, "is", &text);
            }
            // At most eight subjects: each of them gets every statement of the clause.
            (None, Link::And) if self.state.subjects.len() < 8 => self.state.subjects.push(text),
            (None, Link::Comma) if phrase.kind == PhraseKind::Name && self.state.subjects.len() < 8 => {
                self.state.subjects.push(text);
            }
            _ => {}
        }
    }

    /// Handles a phrase after the verb.
    fn object(&mut self, phrase: Phrase, text: String, link: Link, at: usize) {
        let preposition = self.state.preposition.take();
        if preposition.is_none() && link != Link::None && !self.state.relation.is_empty() {
            if link == Link::Comma
                && phrase.determined
                && phrase.kind == PhraseKind::Thing
                && self.appose(phrase, &text, at)
            {
                return;
            }
            let relation = self.state.relation.clone();
            self.state.noun = if phrase.kind == PhraseKind::Thing { self.head(phrase) } else { String::new() };
            return self.state_object(phrase, &relation, text, at);
        }
        let relation = self.relation(preposition.as_deref());
        self.state.noun = match (&preposition, phrase.kind) {
            (Some(_), kind) if self.state.direct && kind != PhraseKind::Thing => std::mem::take(&mut self.state.noun),
            (Some(preposition), PhraseKind::Thing) if !self.state.copula => {
                format!("{preposition} {}", self.head(phrase))
            }
            (Some(_), _) if self.state.copula => std::mem::take(&mut self.state.noun),
            (_, PhraseKind::Thing) => self.head(phrase),
            _ => String::new(),
        };
        self.state.direct = !self.state.noun.is_empty()
            && match &preposition {
                None => phrase.kind == PhraseKind::Thing,
                Some(_) => self.state.direct && phrase.kind != PhraseKind::Thing,
            };
        self.state_object(phrase, &relation, text, at);
    }

    /// Reads appositions such as `, the son of` and `, a town in`, which describe the last object or the subject's
    /// kinship.
    fn appose(&mut self, phrase: Phrase, text: &str, at: usize) -> bool {
        let kin =
            is_kin(&self.head(phrase)) && self.state.subjects.iter().any(|subject| subject == self.referents.title());
        if !kin {
            let Some(object) = self.state.object.clone().filter(|_| self.state.named) else { return false };
            let subjects = std::mem::replace(&mut self.state.subjects, vec![object]);
            self.state.outer.get_or_insert(subjects);
        }
        self.state.facet.clear();
        self.state.verb = Some("is".to_owned());
        self.state.copula = true;
        self.state.noun = self.head(phrase);
        self.state_object(phrase, "is", text.to_owned(), at);
        true
    }

    /// Emits the statement that each subject makes about the object, and remembers the object.
    fn state_object(&mut self, phrase: Phrase, relation: &str, text: String, at: usize) {
        let owner = phrase.owner.filter(|_| phrase.kind == PhraseKind::Thing).and_then(|owner| self.owner(owner));
        let leads_on = phrase.kind == PhraseKind::Thing && self.leads_on(phrase, at);
        relation.clone_into(&mut self.state.relation);
        self.state.named = phrase.kind == PhraseKind::Name;
        self.state.dated = matches!(phrase.kind, PhraseKind::Date | PhraseKind::Number);
        // `He won awards`: a bare noun states too little, but what follows may be about it.
        let vague =
            phrase.kind == PhraseKind::Thing && phrase.end - phrase.start == 1 && !self.state.copula && owner.is_none();
        if vague && text != self.referents.title() {
            self.state.object = Some(text);
            return;
        }
        for subject in self.state.subjects.clone() {
            if self.state.copula && subject == self.referents.title() && phrase.kind == PhraseKind::Thing {
                self.referents.classify(&self.head(phrase));
            }
            match &owner {
                Some(owner) => self.emit(&subject, &format!("{relation} {text} of"), owner),
                None if !leads_on => self.emit(&subject, relation, &text),
                None => {}
            }
        }
        self.state.object = Some(text);
    }

    /// Returns `true` if a noun only introduces the relation to what follows: `daughter of`, `famous for`.
    fn leads_on(&self, phrase: Phrase, at: usize) -> bool {
        let Some(SentenceChunk::Preposition { start, .. }) = self.chunks.get(at + 1) else { return false };
        let adjective = !phrase.determined && phrase.end - phrase.start == 1 && self.state.copula;
        self.tokens[*start].text == "of" || adjective || (self.state.direct && !self.state.copula)
    }

    /// Returns the words between the subject and an object under `preposition`.
    fn relation(&self, preposition: Option<&str>) -> String {
        let state = &self.state;
        let verb = state.verb.as_deref().unwrap_or_default();
        let noun = match preposition {
            Some("of") => state.noun.as_str(),
            Some(_) if state.copula || state.direct => state.noun.as_str(),
            _ => "",
        };
        join(&[&state.facet, verb, noun, preposition.unwrap_or_default()])
    }

    fn verb(&mut self, verb: Verb, at: usize) {
        let link = std::mem::take(&mut self.state.link);
        let mut words = self.verb_words(verb);
        // `written and directed by`.
        // The verb before stands two chunks back, in front of the comma or `and`.
        let joined = link != Link::None
            && self.state.preposition.is_none()
            && matches!(self.chunks[at.saturating_sub(2)], SentenceChunk::Verb(_));
        let before = self.state.verb.as_ref().filter(|before| before.len() < LONGEST_JOINED);
        if let (true, Some(before)) = (joined, before) {
            words = format!("{before}{} {words}", if link == Link::And { " and" } else { "," });
        }
        self.state.preposition = None;
        if self.state.subjects.is_empty() {
            self.state.verb = Some(words);
            return;
        }
        if self.state.verb.is_some() {
            self.change_subject(verb, link);
        }
        let first = self.state.verb.is_none();
        if !first {
            self.state.facet.clear();
        }
        self.state.relative = false;
        self.state.copula = verb.copula;
        self.state.noun.clear();
        self.state.relation.clear();
        let followed = self.chunks.get(at + 1).is_some_and(|next| matches!(next, SentenceChunk::Phrase(_)));
        for (words_before, object) in std::mem::take(&mut self.state.opening) {
            let relation = match words_before.as_str() {
                "" if followed => continue,
                "" => join(&[&self.state.facet, &words]),
                _ if words_before.contains(' ') => words_before,
                _ => join(&[&self.state.facet, &words, &words_before]),
            };
            for subject in self.state.subjects.clone() {
                self.emit(&subject, &relation, &object);
            }
        }
        self.state.verb = Some(words);
    }

    /// Handles a further verb, which may have another subject.
    fn change_subject(&mut self, verb: Verb, link: Link) {
        // After a comma or `and`, the verb belongs to the clause around the embedded one.
        if let Some(outer) = self.state.outer.take_if(|_| link != Link::None) {
            self.state.subjects = outer;
            return;
        }
        let modifies = link == Link::None && !self.state.copula && self.state.named;
        if let (true, Some(object)) = (modifies, self.state.object.clone()) {
            let subjects = std::mem::replace(&mut self.state.subjects, vec![object]);
            if self.state.outer.is_none() && !verb.finite {
                self.state.outer = Some(subjects);
            }
        }
    }

    fn relative(&mut self) {
        let state = &mut self.state;
        state.preposition = None;
        state.link = Link::None;
        if state.subjects.is_empty() {
            return;
        }
        if let (true, Some(object)) = (state.verb.is_some() && state.named, state.object.clone()) {
            let subjects = std::mem::replace(&mut state.subjects, vec![object]);
            // After nested clauses, reading returns to the outermost subjects.
            state.outer.get_or_insert(subjects);
        }
        state.verb = None;
        state.facet.clear();
        state.relative = true;
    }

    fn aside(&mut self, start: usize, end: usize) {
        let target = match (&self.state.verb, &self.state.object, self.state.subjects.first()) {
            (None, _, Some(subject)) => subject.clone(),
            (Some(_), Some(object), _) if self.state.named => object.clone(),
            _ => return,
        };
        let person = target == self.referents.title() && self.referents.is_person();
        for (relation, object) in
            brackets::read(self.text, &self.tokens[start.min(end)..end.min(start + LONGEST_ASIDE)], person)
        {
            self.emit(&target, relation, &object);
        }
    }

    fn is_followed_by_verb(&self, at: usize) -> bool {
        let mut rest = self.chunks[at + 1..].iter().filter(|chunk| !matches!(chunk, SentenceChunk::Aside { .. }));
        matches!(rest.next(), Some(SentenceChunk::Verb(verb)) if verb.finite)
    }

    fn verb_words(&self, verb: Verb) -> String {
        let words = self.tokens[verb.start..verb.end]
            .iter()
            .filter(|token| token.tag != WordTag::Adverb || is_particle(token.text));
        let words: Vec<String> = words.map(|token| token.text.to_lowercase()).collect();
        // `was born` and `born` are the same relation, and so are `has been` and `is`.
        let first = words
            .iter()
            .take(words.len().saturating_sub(1))
            .position(|word| !is_auxiliary(word))
            .unwrap_or(words.len().saturating_sub(1));
        if self.tokens[verb.end - 1].tag == WordTag::Verb { words[first..].join(" ") } else { words.join(" ") }
    }

    fn head(&self, phrase: Phrase) -> String {
        self.tokens[phrase.end - 1].text.to_lowercase()
    }

    fn slice(&self, start: usize, end: usize) -> &'a str {
        if start >= end { "" } else { &self.text[self.tokens[start].start..self.tokens[end - 1].end()] }
    }

    fn emit(&mut self, subject: &str, relation: &str, object: &str) {
        if subject.is_empty() || object.is_empty() || relation.is_empty() || subject == object {
            return;
        }
        self.triples.add(Triple::new(subject, relation, object));
    }
}
