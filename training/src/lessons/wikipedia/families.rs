//! Facts about the families of people, extracted from encyclopedia articles with simple patterns.

use std::sync::LazyLock;

use regex::Regex;

use super::people::ArticleFact;
use crate::lessons::rows::CorpusPassage;
use crate::lessons::text::{bare_title, sentences, words};

/// Pattern of a name: capitalized words and the small words that join them.
pub const NAME: &str =
    r"((?:[A-Z][\w’'\-]+|[A-Z]\.)(?:(?: (?:of|de|von|van|der|the|la|del|di|da))* (?:[A-Z][\w’'\-]+|[A-Z]\.))*)";

/// Number of sentences that are read.
const READ: usize = 5;

static PARENTS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let described = r"(?:(?:the|his|her|an?) )?(?:[a-z]+ ){0,3}";
    Regex::new(&format!(
        r"\b(?:son|daughter|child) of {described}{NAME}(?: and (his (?:\w+ )?wife,? )?{described}{NAME})?"
    ))
    .ok()
});
static MARRIED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(&format!(r"\b(?:married(?: to)?|(?:wife|husband|widow) of) (?:[a-z]+ ){{0,3}}{NAME}")).ok()
});

/// Words in a name that mark a man.
const MEN: &[&str] = &["king", "sir", "lord", "prince", "duke", "count", "emperor", "earl", "baron", "rev", "sultan"];

/// Father, mother and spouse of the article's subject, from sentences about the subject.
pub fn facts(document: &CorpusPassage) -> Vec<ArticleFact> {
    let mut facts: Vec<ArticleFact> = Vec::new();
    let mut tell = |relation: &'static str, name: &str| {
        // A name that the title contains is the subject's own.
        if !facts.iter().any(|fact| fact.relation == relation) && !bare_title(&document.title).contains(name) {
            facts.push(ArticleFact { relation, objects: vec![name.to_owned()] });
        }
    };
    let sentences = sentences(&document.text);
    for sentence in sentences.iter().take(READ).filter(|sentence| is_about(sentence, &document.title)) {
        if let Some(found) = PARENTS.as_ref().and_then(|pattern| pattern.captures(sentence)) {
            // Only a male title, or a mother called "his wife", tells which of two parents is the father.
            let married = found.get(2).is_some();
            if married || words(&found[1]).iter().any(|word| MEN.contains(&word.as_str())) {
                tell("father", &found[1]);
                if let Some(mother) = found.get(3) {
                    tell("mother", mother.as_str());
                }
            }
        }
        let told = MARRIED.as_ref().and_then(|pattern| pattern.captures(sentence));
        if let Some(found) = told.filter(|found| words(&found[1]).len() > 1) {
            tell("spouse", &found[1]);
        }
    }
    facts
}

/// Returns `true` if a sentence starts with the article's subject or with a pronoun for a person.
fn is_about(sentence: &str, title: &str) -> bool {
    let first = words(sentence);
    let title = words(bare_title(title));
    first.first().is_some_and(|word| matches!(word.as_str(), "he" | "she") || title.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(title: &str, text: &str) -> Vec<(&'static str, String)> {
        let document = CorpusPassage { id: "x".into(), title: title.into(), text: text.into() };
        facts(&document).into_iter().map(|fact| (fact.relation, fact.objects.concat())).collect()
    }

    #[test]
    fn families_are_read() {
        assert!(PARENTS.is_some() && MARRIED.is_some());
        let told = of(
            "Ann of Orange (nun)",
            "Ann of Orange was a nun. She was the only daughter of the judge John Lee of Orange and his second wife, Mary \
             de Vere. In 1701 the king married Joan Smith. She married Peter P. Hill in 1702.",
        );
        let expected = [("father", "John Lee of Orange"), ("mother", "Mary de Vere"), ("spouse", "Peter P. Hill")];
        assert_eq!(told, expected.map(|(relation, name)| (relation, name.to_owned())));
    }

    #[test]
    fn a_name_ends_at_a_comma() {
        let told = of("Ann Lee", "She married Jim Smith, Duke of Kent, in 1702.");
        assert_eq!(told, [("spouse", "Jim Smith".to_owned())]);
    }

    #[test]
    fn a_father_requires_a_male_title_or_a_wife() {
        assert_eq!(of("Ann Lee", "Ann is a daughter of the actress Mary Lee and the director Tom Ray."), []);
        assert_eq!(of("Ann Lee", "Ann is a daughter of Pat Lee."), []);
        assert_eq!(of("Ann Lee", "Ann is a daughter of Sir Pat Lee."), [("father", "Sir Pat Lee".to_owned())]);
    }
}
