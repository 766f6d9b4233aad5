//! Facts about people, extracted from the first sentences of encyclopedia articles with simple patterns.

use std::sync::LazyLock;

use regex::Regex;

use crate::lessons::rows::CorpusPassage;
use crate::lessons::text::{sentences, words};

/// Fact about the subject of an article.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArticleFact {
    /// Name of the relation.
    pub relation: &'static str,
    /// Values in the article's words, best first.
    pub objects: Vec<String>,
}

/// Occupations that questions ask for.
#[rustfmt::skip]
const OCCUPATIONS: &[&str] = &[
    "film director", "television director", "theatre director", "film producer", "record producer", "television producer",
    "music producer", "screenwriter", "songwriter", "singer-songwriter", "cinematographer", "film editor",
    "art historian", "art director", "television presenter", "radio personality", "disc jockey", "talent manager",
    "football player", "baseball player", "basketball player", "ice hockey player", "cricketer", "footballer", "wrestler",
    "weightlifter", "rugby player", "tennis player", "chess player", "race car driver", "racing driver", "jockey",
    "cyclist", "sprinter", "swimmer", "boxer", "golfer", "fencer", "rower", "gymnast", "sailor", "skier",
    "football manager", "coach", "referee", "actress", "actor", "comedian", "singer", "rapper", "musician", "guitarist",
    "drummer", "bassist", "pianist", "violinist", "saxophonist", "trumpeter", "composer", "conductor", "lyricist",
    "choreographer", "ballet dancer", "dancer", "model", "politician", "diplomat", "lawyer", "judge", "attorney",
    "journalist", "writer", "author", "novelist", "poet", "playwright", "essayist", "editor", "publisher", "translator",
    "critic", "historian", "philosopher", "theologian", "bishop", "priest", "rabbi", "monk", "nun", "missionary",
    "mathematician", "physicist", "chemist", "biologist", "botanist", "zoologist", "astronomer", "geologist", "economist",
    "psychologist", "physician", "surgeon", "nurse", "engineer", "architect", "inventor", "businessman", "businesswoman",
    "entrepreneur", "banker", "merchant", "painter", "sculptor", "photographer", "illustrator", "cartoonist", "animator",
    "designer", "soldier", "military officer", "army officer", "naval officer", "general", "admiral", "explorer",
    "civil servant", "professor", "teacher", "librarian", "linguist", "anthropologist", "sociologist", "activist",
    "trade unionist", "nobleman", "film director and producer", "director", "producer", "filmmaker", "documentary filmmaker",
    "restaurateur", "chef", "impresario", "production designer", "costume designer", "set designer",
];

/// Words that are no answer to "In what city …?".
#[rustfmt::skip]
const COUNTRIES: &[&str] = &[
    "America", "Argentina", "Australia", "Austria", "Belgium", "Brazil", "Bulgaria", "California", "Canada", "China",
    "Cuba", "Denmark", "Egypt", "England", "Finland", "Florida", "France", "Germany", "Ghana", "Greece", "Hungary",
    "India", "Iran", "Iraq", "Ireland", "Israel", "Italy", "Jamaica", "Japan", "Kenya", "Mexico", "Netherlands",
    "New Zealand", "Nigeria", "Northern Ireland", "Norway", "Ontario", "Pakistan", "Poland", "Portugal", "Romania",
    "Russia", "Scotland", "Serbia", "South Africa", "Spain", "Sweden", "Switzerland", "Texas", "Turkey", "Ukraine",
    "Virginia", "Wales", "West Virginia", "January", "February", "March", "April", "May", "June", "July", "August",
    "September", "October", "November", "December",
];

/// Nationalities as they occur in first sentences.
#[rustfmt::skip]
pub const NATIONALITIES: &[&str] = &[
    "Albanian", "Algerian", "American", "Argentine", "Armenian", "Australian", "Austrian", "Azerbaijani", "Bangladeshi",
    "Belarusian", "Belgian", "Bengali", "Bolivian", "Bosnian", "Brazilian", "British", "Bulgarian", "Cameroonian",
    "Canadian", "Chilean", "Chinese", "Colombian", "Croatian", "Cuban", "Cypriot", "Czech", "Danish", "Dutch", "Egyptian",
    "English", "Estonian", "Ethiopian", "Filipino", "Finnish", "French", "Georgian", "German", "Ghanaian", "Greek",
    "Hungarian", "Icelandic", "Indian", "Indonesian", "Iranian", "Iraqi", "Irish", "Israeli", "Italian", "Jamaican",
    "Japanese", "Kazakhstani", "Kenyan", "Lebanese", "Lithuanian", "Macedonian", "Malaysian", "Mexican", "Mongolian",
    "Moroccan", "Nepalese", "Nigerian", "Norwegian", "Pakistani", "Peruvian", "Polish", "Portuguese", "Romanian",
    "Russian", "Scottish", "Senegalese", "Serbian", "Singaporean", "Slovak", "Slovenian", "Somali", "Soviet", "Spanish",
    "Swedish", "Swiss", "Syrian", "Taiwanese", "Thai", "Tunisian", "Turkish", "Ugandan", "Ukrainian", "Uruguayan",
    "Venezuelan", "Vietnamese", "Welsh", "Yugoslav",
];

/// Nationality named in a text, if it names exactly one.
pub fn nationality(text: &str) -> Option<&'static str> {
    let words = words(text);
    let mut named = NATIONALITIES.iter().filter(|name| words.iter().any(|word| word.eq_ignore_ascii_case(name)));
    named.next().copied().filter(|_| named.next().is_none())
}

static PREDICATE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\)?,? (?:is|was) (?:an? )((?:[^.;]|\b[A-Z]\.){3,160})").ok());
static BORN_IN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let place = r"((?:[A-Z][\w’'\-]+|de|la|of|upon|am|an der|St\.)(?: (?:[A-Z][\w’'\-]+|de|la|of|upon|am|St\.))*)(, [A-Z][\w\-]+(?: [A-Z][\w\-]+)*)?";
    Regex::new(&format!(r"(?:\b[Bb]orn (?:and raised )?(?:on [\w ,]{{4,20}} )?(?:at|in)|\bborn (?:on )?(?:\d{{1,2}} \w+|\w+ \d{{1,2}},) \d{{4}},? (?:at|in)|\( ?(?:born )?(?:\d{{1,2}} \w+|\w+ \d{{1,2}},) \d{{4}},? in|\bhails? from) {place}")).ok()
});
static BORN_ON: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?:\bborn (?:on )?|\( ?)((?:\d{1,2} [A-Z][a-z]+|[A-Z][a-z]+ \d{1,2},) \d{4})").ok());

static DIED_ON: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"\d{4}(?: in [^()–]{3,40})? ?[–-] ?((?:\d{1,2} [A-Z][a-z]+|[A-Z][a-z]+ \d{1,2},) \d{4})").ok()
});

/// Facts that an article states about its subject. Empty unless the subject is a person.
pub fn facts(document: &CorpusPassage) -> Vec<ArticleFact> {
    let sentences = sentences(&document.text);
    let Some(first) = sentences.first() else { return Vec::new() };
    let predicate = PREDICATE.as_ref().and_then(|pattern| pattern.captures(first)?.get(1)).map(|found| found.as_str());
    let occupations = predicate.map(occupations).unwrap_or_default();
    let lived = BORN_ON.as_ref().and_then(|pattern| pattern.captures(first));
    // A subject with neither an occupation nor a birth is not a person.
    if occupations.is_empty() && !first.contains("born") {
        return Vec::new();
    }
    let mut facts = Vec::new();
    if !occupations.is_empty() {
        facts.push(ArticleFact { relation: "occupation", objects: occupations });
    }
    if let Some(date) = lived {
        facts.push(ArticleFact { relation: "date of birth", objects: vec![date[1].to_owned()] });
    }
    if let Some(date) = DIED_ON.as_ref().and_then(|pattern| pattern.captures(first)) {
        facts.push(ArticleFact { relation: "date of death", objects: vec![date[1].to_owned()] });
    }
    if let Some(name) = predicate.and_then(|text| nationality(text.split(" who ").next()?)) {
        facts.push(ArticleFact { relation: "country of citizenship", objects: vec![name.to_owned()] });
    }
    let beginning = sentences.iter().take(4);
    let place = |sentence: &&str| {
        // The place of death would otherwise match too.
        let own = sentence.split(" died").next().unwrap_or(sentence);
        BORN_IN.as_ref()?.captures(own).filter(|found| !COUNTRIES.contains(&&found[1])).map(|found| {
            let city = found[1].to_owned();
            let whole = found.get(2).map(|rest| format!("{}{}", &found[1], rest.as_str()));
            [Some(city), whole].into_iter().flatten().collect()
        })
    };
    // A sentence about the parents may hold their birthplace.
    if let Some(objects) = beginning.filter(|sentence| !sentence.contains("parents")).find_map(place) {
        facts.push(ArticleFact { relation: "place of birth", objects });
    }
    facts
}

/// Occupations in the predicate of a first sentence, in their order.
fn occupations(text: &str) -> Vec<String> {
    let end = [
        " who ",
        " whose ",
        " best ",
        " known ",
        " from ",
        " for ",
        " of ",
        " in ",
        " at ",
        " with ",
        " that ",
        " (",
        " based",
        " born",
        " by ",
        " to ",
        " which ",
        " where ",
        " currently",
        " specializ",
    ];
    let stop = end.iter().filter_map(|word| text.find(word)).min().unwrap_or(text.len());
    let mut found: Vec<String> = Vec::new();
    for part in text[..stop].split([',', '/']).flat_map(|part| part.split(" and ")) {
        let part = part.trim().trim_end_matches('.');
        let known = OCCUPATIONS.iter().filter(|name| {
            part.strip_suffix(**name).is_some_and(|before| before.is_empty() || before.ends_with([' ', '-']))
        });
        // The longest name, because "film director" also ends with "director".
        found.extend(known.max_by_key(|name| name.len()).map(|name| (*name).to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(text: &str) -> Vec<(&'static str, Vec<String>)> {
        let document = CorpusPassage { id: "x".into(), title: "X".into(), text: text.into() };
        facts(&document).into_iter().map(|fact| (fact.relation, fact.objects)).collect()
    }

    #[test]
    fn patterns_compile() {
        assert!(PREDICATE.is_some() && BORN_IN.is_some() && BORN_ON.is_some() && DIED_ON.is_some());
    }

    #[test]
    fn typical_first_sentences_are_read() {
        let facts =
            of("Guido Brignone (6 December 1886 – 6 March 1959) was an Italian film director and actor. He was the \
                        father of actress Lilla Brignone. Brignone was born in Milan, Italy.");
        let expected = [
            ("occupation", vec!["film director".to_owned(), "actor".into()]),
            ("date of birth", vec!["6 December 1886".into()]),
            ("date of death", vec!["6 March 1959".into()]),
            ("country of citizenship", vec!["Italian".into()]),
            ("place of birth", vec!["Milan".into(), "Milan, Italy".into()]),
        ];
        assert_eq!(facts, expected);
        let facts =
            of("Bernard Bonvoisin( born 9 July 1956 in Nanterre, Hauts- de- Seine), is a French hard rock singer.");
        assert_eq!(facts[0].1, ["singer"]);
        assert_eq!(facts[3].1[0], "Nanterre");
    }

    #[test]
    fn countries_and_months_are_not_cities() {
        let relations = |text| of(text).into_iter().map(|(relation, _)| relation).collect::<Vec<_>>();
        assert_eq!(relations("Ann Lee is an actress. She was born in France."), ["occupation"]);
        assert_eq!(relations("Ann Lee is an actress. She was born in May 1950."), ["occupation"]);
    }

    #[test]
    fn films_have_no_occupation() {
        assert_eq!(of("Devotion is a 1929 Austrian-German drama film directed by Guido Brignone, a director."), []);
        assert_eq!(of(""), []);
    }
}
