//! Who or what a pronoun or a short name means within one passage.

use super::lexicon::Tag;
use super::title::base;
use super::token::Token;

/// What has been named in a passage so far.
#[derive(Debug)]
pub(super) struct Referents {
    /// The passage's title, as it stands in triples.
    title: String,
    /// The words of the title without its qualifier.
    words: Vec<String>,
    person: bool,
    /// Nouns that say what the title is: `film`, `band`.
    classes: Vec<String>,
    /// Names of several words, in the order in which they were seen.
    names: Vec<String>,
}

/// Words of titles that are no people.
const THINGS: &[&str] = &[
    "of",
    "the",
    "and",
    "for",
    "in",
    "at",
    "on",
    "University",
    "School",
    "College",
    "County",
    "City",
    "River",
    "Lake",
    "Island",
    "Islands",
    "Park",
    "Station",
    "Company",
    "Records",
    "League",
    "Cup",
    "War",
    "Battle",
    "Township",
    "Street",
    "House",
    "Museum",
    "Church",
    "Castle",
    "Airport",
    "Festival",
    "Award",
    "Awards",
    "Party",
    "Club",
    "F.C.",
    "FC",
    "Language",
    "Mountains",
    "Valley",
    "Bridge",
    "Building",
    "Tower",
    "District",
    "Province",
    "State",
    "Republic",
];

impl Referents {
    /// Nothing seen yet. `text` is the passage: who is called `he` there is a person.
    pub(super) fn new(name: String, title: &str, tokens: &[Token<'_>]) -> Referents {
        let words: Vec<String> =
            base(title).split([' ', ',', '-']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let named = words.len() <= 6 && !words.iter().any(|word| THINGS.contains(&word.as_str()));
        let spoken = tokens
            .iter()
            .any(|token| matches!(token.text, "He" | "She" | "he" | "she" | "his" | "her" | "His" | "Her"));
        let dated = tokens.iter().take(24).any(|token| matches!(token.text, "born" | "b." | "died" | "Born"));
        let royal =
            words.iter().any(|word| word.len() > 1 && word.bytes().all(|byte| matches!(byte, b'I' | b'V' | b'X')));
        let person = (named || royal || title.contains(", ")) && (dated || spoken) && !is_work(tokens);
        Referents { title: name, words, person, classes: Vec::new(), names: Vec::new() }
    }

    /// The title's name.
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// Whether the title names a person.
    pub(super) fn is_person(&self) -> bool {
        self.person
    }

    /// Remembers a name that others may be short for, and a class of the title.
    pub(super) fn see(&mut self, name: &str) {
        if name.contains(' ') && name != self.title && !self.names.iter().any(|seen| seen == name) {
            self.names.push(name.to_owned());
        }
    }

    /// Remembers that the title is a `class`.
    pub(super) fn classify(&mut self, class: &str) {
        let class = class.to_lowercase();
        if !class.is_empty() && !self.classes.contains(&class) {
            self.classes.push(class);
        }
    }

    /// Whether the thing called `the ‹noun›` is the title.
    pub(super) fn is_class(&self, noun: &str) -> bool {
        self.classes.iter().any(|class| class == noun)
    }

    /// Whom a pronoun means, `subject` being what the last sentence was about.
    pub(super) fn pronoun(&self, pronoun: &str) -> Option<String> {
        match pronoun.to_lowercase().as_str() {
            "he" | "she" | "him" | "his" | "her" | "himself" | "herself" if self.person => Some(self.title.clone()),
            "he" | "she" | "him" | "his" | "her" | "himself" | "herself" => self.names.last().cloned(),
            "it" | "its" | "itself" if !self.person => Some(self.title.clone()),
            "they" | "their" | "them" | "themselves" => Some(self.title.clone()),
            _ => None,
        }
    }

    /// The full form of `name`, if it is a short one.
    pub(super) fn full(&self, name: &str) -> Option<&str> {
        if name == self.title {
            return None;
        }
        let count = name.split(' ').count();
        if self.person && count <= 2 && self.is_part(name) {
            return Some(&self.title);
        }
        if name.eq_ignore_ascii_case(&self.words.join(" ")) {
            return Some(&self.title);
        }
        if count != 1 {
            return None;
        }
        self.names.iter().find(|full| last_word(full) == name).map(String::as_str)
    }

    /// Whether every word of `name` is a word of the title.
    fn is_part(&self, name: &str) -> bool {
        name.split(' ').all(|part| self.words.iter().any(|word| word == part))
    }

    /// Whether the first name of the passage is the title in another form: it shares a word with it.
    pub(super) fn resembles(&self, name: &str) -> bool {
        let small = |word: &str| word.len() < 3 || matches!(word, "the" | "The" | "and" | "for");
        name.split([' ', ',']).any(|part| !small(part) && self.words.iter().any(|word| word.eq_ignore_ascii_case(part)))
    }
}

/// Whether the first sentence says that the title is something made.
fn is_work(tokens: &[Token<'_>]) -> bool {
    let Some(be) = tokens.iter().take(40).position(|token| token.tag == Tag::Be) else { return false };
    let after = &tokens[be..tokens.len().min(be + 14)];
    after.iter().enumerate().any(|(at, token)| {
        // A film director is no film.
        let heads = after.get(at + 1).is_none_or(|next| !matches!(next.tag, Tag::Noun | Tag::And));
        heads
            && matches!(
                token.text,
                "film"
                    | "album"
                    | "song"
                    | "single"
                    | "novel"
                    | "book"
                    | "series"
                    | "band"
                    | "opera"
                    | "play"
                    | "game"
                    | "episode"
                    | "company"
                    | "river"
                    | "city"
                    | "town"
                    | "village"
                    | "journal"
                    | "magazine"
                    | "newspaper"
                    | "sitcom"
                    | "musical"
                    | "poem"
                    | "EP"
                    | "soundtrack"
                    | "ship"
                    | "school"
                    | "university"
            )
    })
}

/// The surname, before `Jr.` and numerals.
fn last_word(name: &str) -> &str {
    let mut words = name
        .rsplit(' ')
        .filter(|word| !matches!(*word, "Jr." | "Sr.") && !word.bytes().all(|byte| matches!(byte, b'I' | b'V' | b'X')));
    words.next().unwrap_or(name)
}
