//! Resolves pronouns and short names within one passage.

use std::collections::{HashMap, HashSet};

use super::date::is_year;
use super::lexicon::WordTag;
use super::title_index::base;
use super::token::WordToken;

/// Names mentioned so far in a passage.
#[derive(Debug)]
pub(super) struct Referents {
    /// Title of the passage, as used in triples.
    title: String,
    /// Words of the title without its qualifier.
    words: Vec<String>,
    /// The same words, separated by spaces.
    whole: String,
    person: bool,
    /// Last subject that is a name. `None` before the first.
    topic: Option<String>,
    /// Nouns that describe the title: `film`, `band`.
    classes: HashSet<String>,
    /// Names of several words.
    names: HashSet<String>,
    /// Last of these names.
    latest: Option<String>,
    /// Full name for each short form: the first name seen that it may abbreviate.
    short: HashMap<String, String>,
}

/// Words in titles that do not name people.
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

/// Nouns that, after `the`, refer to a title that does not name a person.
const GENERIC: &[&str] = &[
    "film",
    "movie",
    "album",
    "song",
    "single",
    "book",
    "novel",
    "series",
    "show",
    "band",
    "group",
    "company",
    "city",
    "town",
    "village",
    "country",
    "nation",
    "state",
    "province",
    "county",
    "district",
    "region",
    "area",
    "island",
    "river",
    "lake",
    "school",
    "university",
    "college",
    "station",
    "team",
    "club",
    "league",
    "party",
    "organization",
    "organisation",
    "game",
    "magazine",
    "journal",
    "newspaper",
    "church",
    "building",
    "bridge",
    "museum",
    "airport",
    "ship",
    "battle",
    "war",
    "program",
    "programme",
    "network",
    "label",
    "event",
    "tournament",
    "festival",
    "episode",
    "play",
    "story",
];

impl Referents {
    /// Starts a passage without mentions. `tokens` is its text, which tells whether the title is a person.
    pub(super) fn new(name: String, title: &str, tokens: &[WordToken<'_>]) -> Referents {
        let words: Vec<String> =
            base(title).split([' ', ',', '-']).filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let whole = words.join(" ");
        let named = words.len() <= 6 && !words.iter().any(|word| THINGS.contains(&word.as_str()));
        // A pronoun anywhere tells a person's page from one about a family name or a place.
        let spoken = tokens
            .iter()
            .any(|token| matches!(token.text, "He" | "She" | "he" | "she" | "his" | "her" | "His" | "Her"));
        // `Lothair II` and `Henry, Duke of York` name people in spite of their `of` and their length.
        let royal = words.iter().any(|word| word != "I" && is_numeral(word)) || title.contains(", ");
        let person = !is_work(tokens) && (lived(tokens) || (spoken && (named || royal)));
        let classes = HashSet::new();
        let names = HashSet::new();
        let short = HashMap::new();
        Referents { title: name, words, whole, person, topic: None, classes, names, latest: None, short }
    }

    /// Name of the title in triples.
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// Remembers the subject of a clause.
    pub(super) fn turn(&mut self, name: &str) {
        if self.topic.as_deref() != Some(name) {
            self.topic = Some(name.to_owned());
        }
    }

    /// Returns `true` if the title names a person.
    pub(super) fn is_person(&self) -> bool {
        self.person
    }

    /// Remembers a name of several words and its short forms.
    pub(super) fn see(&mut self, name: &str) {
        // A single word has no shorter form.
        if !name.contains(' ') || name == self.title || !self.names.insert(name.to_owned()) {
            return;
        }
        self.latest = Some(name.to_owned());
        // The first bearer keeps a short form: texts introduce a person by the full name.
        for short in short_forms(name) {
            self.short.entry(short.to_owned()).or_insert_with(|| name.to_owned());
        }
    }

    /// Remembers that the title is a `class`.
    pub(super) fn classify(&mut self, class: &str) {
        let class = class.to_lowercase();
        if !class.is_empty() {
            self.classes.insert(class);
        }
    }

    /// Returns `true` if `the ‹noun›` refers to the title.
    pub(super) fn is_class(&self, noun: &str) -> bool {
        self.classes.contains(noun) || (!self.person && GENERIC.contains(&noun))
    }

    /// Returns the name that a pronoun refers to. `None` if there is none.
    pub(super) fn pronoun(&self, pronoun: &str) -> Option<String> {
        match pronoun.to_lowercase().as_str() {
            "he" | "she" | "him" | "his" | "her" | "himself" | "herself" if self.person => Some(self.title.clone()),
            "he" | "she" | "him" | "his" | "her" | "himself" | "herself" => {
                self.topic.clone().filter(|topic| *topic != self.title).or_else(|| self.latest.clone())
            }
            "it" | "its" | "itself" if !self.person => Some(self.title.clone()),
            "they" | "their" | "them" | "themselves" => Some(self.title.clone()),
            _ => None,
        }
    }

    /// Returns the full form of a short `name`. `None` if `name` is not a known short form.
    pub(super) fn full(&self, name: &str) -> Option<&str> {
        if name == self.title {
            return None;
        }
        let count = name.split(' ').count();
        if self.person && count <= 2 && self.is_part(name) {
            return Some(&self.title);
        }
        if name.eq_ignore_ascii_case(&self.whole) {
            return Some(&self.title);
        }
        let partial = self.whole.strip_suffix(name).is_some_and(|rest| rest.ends_with(' '));
        if !self.person && count > 1 && partial {
            return Some(&self.title);
        }
        self.short.get(name).map(String::as_str)
    }

    /// Returns `true` if every word of `name` is a word of the title.
    fn is_part(&self, name: &str) -> bool {
        name.split(' ').all(|part| self.words.iter().any(|word| word == part))
    }

    /// Returns `true` if `name` is part of the title, or the title is part of `name`.
    pub(super) fn is_variant(&self, name: &str) -> bool {
        let words: Vec<&str> = name.split([' ', ',', '-']).filter(|word| !word.is_empty()).collect();
        words.iter().all(|part| self.words.iter().any(|word| word == part))
            || self.words.iter().all(|word| words.contains(&word.as_str()))
    }

    /// Returns `true` if the first name of the passage is another form of the title: they share a word.
    pub(super) fn resembles(&self, name: &str) -> bool {
        let small = |word: &str| word.len() < 3 || matches!(word, "the" | "The" | "and" | "for");
        name.split([' ', ',']).any(|part| !small(part) && self.words.iter().any(|word| word.eq_ignore_ascii_case(part)))
    }
}

/// Returns `true` if the words after the first form of `be` describe the title as a work, an organization or a place.
fn is_work(tokens: &[WordToken<'_>]) -> bool {
    let Some(be) = tokens.iter().take(40).position(|token| token.tag == WordTag::Be) else { return false };
    let after = &tokens[be..tokens.len().min(be + 14)];
    after.iter().enumerate().any(|(at, token)| {
        // In `film director`, the title is not a film.
        let heads = after.get(at + 1).is_none_or(|next| !matches!(next.tag, WordTag::Noun | WordTag::And));
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

/// Recognizes the dates of a life in the first words: `(born`, `(1 May 1900 – 2 June 1980)`.
fn lived(tokens: &[WordToken<'_>]) -> bool {
    let Some(open) = tokens.iter().take(16).position(|token| token.tag == WordTag::Open) else { return false };
    let inside = tokens[open + 1..].iter().take(20).take_while(|token| token.tag != WordTag::Close);
    let mut years = 0;
    let mut span = false;
    for token in inside {
        match token.text {
            "born" | "b." | "died" | "d." | "Born" | "née" => return true,
            "–" | "—" | "-" => span = true,
            // `1900–1980` is one token that holds both ends of a life.
            year if is_year(year) => years += 1 + usize::from(year.contains('–')) * 2,
            _ => {}
        }
    }
    years > 2 || (years == 2 && span)
}

/// Iterates over the short forms of the name `full`: surnames of one or of two words.
fn short_forms(full: &str) -> impl Iterator<Item = &str> {
    let first = full.split(' ').next().unwrap_or_default();
    let descent = ["an", "ese", "ish", "ist", "ern", "ic", "th", "The", "New"].iter().any(|end| first.ends_with(end));
    let count = full.split(' ').count();
    let most = if count > 4 || full.contains(" of ") || (descent && count < 3) { 0 } else { 2 };
    // `Lothair II` is called Lothair, not II.
    let core = full.trim_end_matches(['I', 'V', 'X', ' ']);
    let core = core.strip_suffix(" Jr.").unwrap_or(core);
    core.rmatch_indices(' ').take(most).map(|(at, _)| &core[at + 1..])
}

fn is_numeral(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| matches!(byte, b'I' | b'V' | b'X'))
}
