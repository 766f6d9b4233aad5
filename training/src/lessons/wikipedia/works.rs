//! Facts about films and songs, extracted from the first sentences of encyclopedia articles with simple patterns.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::families::NAME;
use super::people::{ArticleFact, nationality};
use crate::lessons::rows::CorpusPassage;
use crate::lessons::text::{sentences, words};

static FILM: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\b(?:is|was) an? (?:upcoming )?(?:(\d{4}) )?([^.,;]{0,90}?)\bfilm\b").ok());
static DIRECTED: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(&format!(r"\bdirected (?:and \w+ )?by {NAME}((?:,| and|, and) [A-Z])?")).ok());
static SONG: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(&format!(r"\b(?:song|single) (?:recorded |performed |released )?by (?:(?:the )?[A-Z][a-z]+(?:n|ish) (?:[a-z&]+ ){{1,8}}|(?:[a-z&]+ ){{0,8}}){NAME}")).ok()
});

/// Facts that an article states about its subject. Empty unless the subject is a film or a song.
pub fn facts(document: &CorpusPassage) -> Vec<ArticleFact> {
    let sentences = sentences(&document.text);
    let Some(first) = sentences.first() else { return Vec::new() };
    let fact = |relation, object: &str| ArticleFact { relation, objects: vec![object.to_owned()] };
    let mut facts = Vec::new();
    if let Some(film) = film(first) {
        facts.extend(film.get(1).map(|year| fact("publication date", year.as_str())));
        facts.extend(nationality(&film[2]).map(|name| fact("country of origin", name)));
        let told = sentences.iter().take(2).find_map(|sentence| DIRECTED.as_ref()?.captures(sentence));
        // A second director would make the question ambiguous.
        facts.extend(told.filter(|found| found.get(2).is_none()).map(|found| fact("director", &found[1])));
    } else if let Some(found) = SONG.as_ref().and_then(|pattern| pattern.captures(first)) {
        facts.push(fact("performer", &found[1]));
    }
    facts
}

/// Words before "film" that give the sentence another subject: a song from a film, a director of films.
const BEFORE: &[&str] = &["about", "by", "for", "from", "in", "of", "on", "to"];
/// Words after "film" that give the sentence another subject.
const BEHIND: &[&str] =
    &["actor", "actress", "critic", "director", "festival", "producer", "score", "series", "soundtrack"];

/// Match of a first sentence about a film: the year and the words before "film".
fn film(first: &str) -> Option<Captures<'_>> {
    let found = FILM.as_ref()?.captures(first)?;
    let behind = words(&first[found.get(0)?.end()..]);
    let other = behind.first().is_some_and(|word| BEHIND.contains(&word.as_str()));
    (!other && !words(&found[2]).iter().any(|word| BEFORE.contains(&word.as_str()))).then_some(found)
}

/// Returns `true` if the first sentence of an article states that its subject is a film.
pub fn is_film(document: &CorpusPassage) -> bool {
    sentences(&document.text).first().is_some_and(|first| film(first).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(&'static str, String)> {
        let document = CorpusPassage { id: "x".into(), title: "X".into(), text: text.into() };
        facts(&document).into_iter().map(|fact| (fact.relation, fact.objects.concat())).collect()
    }

    #[test]
    fn films_are_read() {
        assert!(FILM.is_some() && DIRECTED.is_some() && SONG.is_some());
        let told =
            of("Low Tide is a 1932 Danish silent film directed by P. N. Menon and starring Ann Lee. It was lost.");
        let expected = [("publication date", "1932"), ("country of origin", "Danish"), ("director", "P. N. Menon")];
        assert_eq!(told, expected.map(|(relation, object)| (relation, object.to_owned())));
    }

    #[test]
    fn two_countries_or_two_directors_yield_no_fact() {
        let told = of("Low Tide is a Danish- Dutch film directed by Ann Lee and Bob Ray.");
        assert_eq!(told, []);
        let told = of("Low Tide is a lost film directed by Ann Lee, Bob Ray.");
        assert_eq!(told, []);
    }

    #[test]
    fn films_are_distinguished_from_related_subjects() {
        let is = |text: &str| is_film(&CorpusPassage { id: "x".into(), title: "X".into(), text: text.into() });
        assert!(is("Low Tide is a 1932 Danish silent film directed by Ann Lee."));
        assert!(!is("Low Tide is a novel by Ann Lee. It is a film too."));
        assert!(!is("Low Tide is a song from the 1999 film High Tide.") && !is(""));
        assert!(!is("Low Tide is a film festival in Denmark.") && !is("Bob Ray is a Danish film director."));
        let song = of("Low Tide is a song by Ann Lee from the 1999 film High Tide directed by Bob Ray.");
        assert_eq!(song, [("performer", "Ann Lee".to_owned())]);
    }

    #[test]
    fn songs_are_read() {
        let told = of("\"Low Tide\" is a song by American gospel singer CeCe Winans, released in 2017.");
        assert_eq!(told, [("performer", "CeCe Winans".to_owned())]);
        assert_eq!(of("Low Tide is a song."), []);
        // "John" is not a nationality, so the whole name is the performer.
        assert_eq!(of("Low Tide is a song by John Ray."), [("performer", "John Ray".to_owned())]);
        assert_eq!(of("Low Tide is a song by the Danish band Rays."), [("performer", "Rays".to_owned())]);
    }
}
