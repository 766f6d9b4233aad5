//! English questions about facts whose relation is one of a few well-known ones.
//!
//! Facts with other relations give no question: a question nobody would ask is worse than none.

use crate::graph::phrase::normalize;
use crate::triple::Triple;

/// Longest name that appears in a question, in characters.
const LONGEST_NAME: usize = 60;

/// Words that name something only within their own passage.
const PRONOUNS: [&str; 18] = [
    "he", "she", "it", "they", "this", "that", "these", "those", "his", "her", "its", "their", "we", "i", "you", "who",
    "which", "there",
];

/// Beginnings of a relation that do not change its meaning.
const AUXILIARIES: [&str; 8] = ["has been ", "have been ", "had been ", "is ", "was ", "are ", "were ", "been "];

/// Relation between a work and its maker.
#[derive(Debug, PartialEq, Eq)]
struct Making {
    /// Relation from the maker to the work; also the verb of the question.
    active: &'static str,
    /// Relation from the work to the maker.
    passive: &'static str,
    /// Noun for the maker.
    noun: &'static str,
}

const MAKINGS: [Making; 12] = [
    Making { active: "composed", passive: "composed by", noun: "composer" },
    Making { active: "wrote", passive: "written by", noun: "author" },
    Making { active: "directed", passive: "directed by", noun: "director" },
    Making { active: "painted", passive: "painted by", noun: "painter" },
    Making { active: "founded", passive: "founded by", noun: "founder" },
    Making { active: "designed", passive: "designed by", noun: "designer" },
    Making { active: "discovered", passive: "discovered by", noun: "discoverer" },
    Making { active: "invented", passive: "invented by", noun: "inventor" },
    Making { active: "created", passive: "created by", noun: "creator" },
    Making { active: "produced", passive: "produced by", noun: "producer" },
    Making { active: "developed", passive: "developed by", noun: "developer" },
    Making { active: "performed", passive: "performed by", noun: "performer" },
];

/// Question about the subject of a fact, whose answer is the object.
#[derive(Debug)]
struct QuestionForm {
    relations: &'static [&'static str],
    /// Question if the object holds a digit. `{}` stands for the subject.
    time: Option<&'static str>,
    /// Question if the object holds no digit.
    other: Option<&'static str>,
}

const FORMS: [QuestionForm; 25] = [
    QuestionForm {
        relations: &["born in", "born at", "born near", "born on"],
        time: Some("When was {} born?"),
        other: Some("Where was {} born?"),
    },
    QuestionForm {
        relations: &["died in", "died at", "died on"],
        time: Some("When did {} die?"),
        other: Some("Where did {} die?"),
    },
    QuestionForm { relations: &["place of birth"], time: None, other: Some("Where was {} born?") },
    QuestionForm { relations: &["place of death"], time: None, other: Some("Where did {} die?") },
    QuestionForm { relations: &["date of birth"], time: Some("When was {} born?"), other: None },
    QuestionForm { relations: &["date of death"], time: Some("When did {} die?"), other: None },
    QuestionForm { relations: &["buried in", "buried at"], time: None, other: Some("Where is {} buried?") },
    QuestionForm {
        relations: &["studied at", "educated at", "studied in"],
        time: None,
        other: Some("Where did {} study?"),
    },
    QuestionForm { relations: &["taught at"], time: None, other: Some("Where did {} teach?") },
    QuestionForm { relations: &["worked at", "worked in"], time: None, other: Some("Where did {} work?") },
    QuestionForm { relations: &["lived in"], time: None, other: Some("Where did {} live?") },
    QuestionForm { relations: &["raised in", "grew up in"], time: None, other: Some("Where did {} grow up?") },
    QuestionForm { relations: &["married", "married to"], time: None, other: Some("Whom did {} marry?") },
    QuestionForm {
        relations: &["country of citizenship"],
        time: None,
        other: Some("Of which country is {} a citizen?"),
    },
    QuestionForm { relations: &["located in", "located at"], time: None, other: Some("Where is {} located?") },
    QuestionForm { relations: &["based in", "headquartered in"], time: None, other: Some("Where is {} based?") },
    QuestionForm {
        relations: &["founded in", "established in"],
        time: Some("When was {} founded?"),
        other: Some("Where was {} founded?"),
    },
    QuestionForm { relations: &["released in", "released on"], time: Some("When was {} released?"), other: None },
    QuestionForm { relations: &["published in"], time: Some("When was {} published?"), other: None },
    QuestionForm { relations: &["opened in"], time: Some("When did {} open?"), other: None },
    QuestionForm { relations: &["hangs in"], time: None, other: Some("Where does {} hang?") },
    QuestionForm { relations: &["set in"], time: None, other: Some("Where is {} set?") },
    QuestionForm { relations: &["lies on"], time: None, other: Some("What does {} lie on?") },
    QuestionForm { relations: &["flows into"], time: None, other: Some("What does {} flow into?") },
    QuestionForm { relations: &["named after"], time: None, other: Some("After whom or what is {} named?") },
];

/// Fact that tells who made a work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Made<'a> {
    pub(super) work: &'a str,
    pub(super) maker: &'a str,
    making: &'static Making,
}

impl<'a> Made<'a> {
    /// Reads a triple. `None` if it does not tell who made something that a question can name.
    pub(super) fn of(triple: &'a Triple) -> Option<Made<'a>> {
        let relation = normalize(&triple.relation);
        let core = without_auxiliary(&relation);
        let bare = core.len() == relation.len();
        let subject = triple.subject.as_str();
        let object = triple.object.as_str();
        let made = MAKINGS.iter().find_map(|making| {
            let (work, maker) = match core {
                core if core == making.passive || core == making.noun => (subject, object),
                // "was painted" is passive: its subject is the work.
                core if bare && core == making.active => (object, subject),
                core if core.strip_suffix(" of") == Some(making.noun) => (object, subject),
                _ => return None,
            };
            Some(Made { work, maker, making })
        })?;
        (is_name(made.work) && is_name(made.maker)).then_some(made)
    }

    /// Noun for the maker.
    pub(super) fn noun(self) -> &'static str {
        self.making.noun
    }

    /// Asks for the maker of the work.
    pub(super) fn question(self) -> String {
        format!("Who {} {}?", self.making.active, self.work)
    }

    /// Describes the maker without a name.
    pub(super) fn description(self) -> String {
        format!("the {} of {}", self.making.noun, self.work)
    }
}

/// Returns the form of question, with `{}` for the subject, whose answer is the object of the triple. `None` if there
/// is none for its relation.
pub(super) fn form(triple: &Triple) -> Option<&'static str> {
    let relation = normalize(&triple.relation);
    let core = without_auxiliary(&relation);
    let form = FORMS.iter().find(|form| form.relations.contains(&core))?;
    // The same relation may lead to a place or to a time, and times have digits.
    let dated = triple.object.chars().any(|c| c.is_ascii_digit());
    let wanted = if dated { form.time } else { form.other };
    wanted.filter(|_| is_name(&triple.subject) && !triple.object.trim().is_empty())
}

/// Fills in a form.
pub(super) fn filled(form: &str, subject: &str) -> String {
    form.replacen("{}", subject.trim(), 1)
}

fn without_auxiliary(relation: &str) -> &str {
    let core = AUXILIARIES.iter().find_map(|auxiliary| relation.strip_prefix(auxiliary)).unwrap_or(relation);
    core.strip_prefix("the ").unwrap_or(core)
}

/// Returns `true` if a text names something on its own: it begins with a capital or a digit, and is neither long nor a
/// pronoun.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    let begins = text.chars().next().is_some_and(|first| first.is_uppercase() || first.is_ascii_digit());
    let single = text.to_lowercase();
    begins
        && text.chars().nth(1).is_some()
        && text.chars().nth(LONGEST_NAME).is_none()
        && text.chars().any(char::is_alphabetic)
        && !text.chars().any(char::is_control)
        && !PRONOUNS.contains(&single.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(subject: &str, relation: &str, object: &str) -> Option<String> {
        let triple = Triple::new(subject, relation, object);
        Made::of(&triple).map(Made::question).or_else(|| form(&triple).map(|form| filled(form, subject)))
    }

    #[test]
    fn known_relations_give_questions() {
        for (triple, question) in [
            (["Don Giovanni", "was composed by", "Mozart"], "Who composed Don Giovanni?"),
            (["Leonardo", "painted", "Mona Lisa"], "Who painted Mona Lisa?"),
            (["Avatar", "director", "James Cameron"], "Who directed Avatar?"),
            (["Mary Shelley", "is the author of", "Frankenstein"], "Who wrote Frankenstein?"),
            (["Mozart", "was born in", "Salzburg"], "Where was Mozart born?"),
            (["Mozart", "born on", "27 January 1756"], "When was Mozart born?"),
            (["Louvre", "is located in", "Paris"], "Where is Louvre located?"),
        ] {
            let [subject, relation, object] = triple;
            assert_eq!(asked(subject, relation, object).unwrap_or_default(), question, "{triple:?}");
        }
    }

    #[test]
    fn other_facts_give_none() {
        let long = "A".repeat(LONGEST_NAME + 1);
        for triple in [
            ["He", "was born in", "Salzburg"],
            ["the film", "was directed by", "Hitchcock"],
            ["Mozart", "admired", "Haydn"],
            ["Mona Lisa", "was painted", "1503"],
            ["Mozart", "buried in", "1791"],
            ["Mozart", "born in", " "],
            [&long, "was born in", "Salzburg"],
            ["Line\nbreak", "was born in", "Salzburg"],
        ] {
            let [subject, relation, object] = triple;
            assert_eq!(asked(subject, relation, object), None, "{triple:?}");
        }
    }
}
