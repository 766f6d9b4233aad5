//! Relations that questions ask for, with their phrases.

/// Relation with its phrases, in which `{}` stands for the subject.
#[derive(Debug, PartialEq, Eq)]
pub struct Relation {
    /// Name of the relation, as in Wikidata and in the evidences of 2WikiMultiHopQA.
    pub name: &'static str,
    /// Noun phrase for the object.
    pub need: &'static str,
    /// Query words that follow the subject.
    pub words: &'static str,
    /// Questions for the object, likeliest first.
    pub asks: &'static [&'static str],
    /// Names of the relation in extracted triples.
    aliases: &'static [&'static str],
}

/// Finds a relation by its name or by a name from extracted triples.
pub fn relation(name: &str) -> Option<&'static Relation> {
    let name = name.trim();
    RELATIONS.iter().find(|relation| relation.name == name || relation.aliases.contains(&name))
}

impl Relation {
    /// Word prefixes, one of which must occur in a sentence that states the relation. Empty if any sentence may.
    pub fn cues(&self) -> &'static [&'static str] {
        match self.name {
            "place of birth" => &["born", "birth", "native"],
            "place of death" => &["die", "death", "dead", "kill"],
            "father" => &["son", "daughter", "father", "child", "born"],
            "mother" => &["son", "daughter", "mother", "child", "born"],
            "spouse" => &["married", "marri", "wife", "husband", "spouse", "consort", "widow"],
            _ => &[],
        }
    }

    /// Returns `true` if an object has the right type: dates contain a digit, all other objects none.
    pub fn admits(&self, object: &str) -> bool {
        let digits = object.chars().any(|c| c.is_ascii_digit());
        let dated = ["date", "inception"].iter().any(|word| self.name.contains(word));
        dated == digits
    }
}

const fn one(
    name: &'static str,
    need: &'static str,
    words: &'static str,
    asks: &'static [&'static str],
    aliases: &'static [&'static str],
) -> Relation {
    Relation { name, need, words, asks, aliases }
}

#[rustfmt::skip]
static RELATIONS: &[Relation] = &[
    one("place of birth", "the birthplace of {}", "born in place of birth",
        &["In what city was {} born?", "In what city was {} born?", "Where was {} born?", "What is the birthplace of {}?"],
        &["born in", "was born in", "is born in"]),
    one("occupation", "the occupation of {}", "occupation",
        &["What is {}'s occupation?", "What is {}'s occupation?", "What is the occupation of {}?", "What was {}'s profession?"], &[]),
    one("date of birth", "the date of birth of {}", "born date of birth",
        &["When was {} born?", "What is the date of birth of {}?"], &["born on", "was born on"]),
    one("date of death", "the date of death of {}", "died date of death",
        &["When did {} die?", "What is the date of death of {}?"], &["died on"]),
    one("place of death", "the place where {} died", "died place of death",
        &["Where did {} die?", "In what place did {} die?"], &["died in", "died at"]),
    one("director", "the director of {}", "film directed by director",
        &["Who directed {}?", "Who is the director of {}?", "Who was the director of the film {}?"], &["directed by", "was directed by"]),
    one("country of citizenship", "the nationality of {}", "nationality",
        &["What nationality is {}?", "What is the nationality of {}?"], &[]),
    one("country", "the country of {}", "country",
        &["In which country is {}?", "What country is {} in?"], &[]),
    one("country of origin", "the country that {} comes from", "country of origin",
        &["What country is {} from?", "Which country did {} come from?"], &[]),
    one("publication date", "the release date of {}", "release date year",
        &["When was {} released?", "When did {} come out?"], &["released in", "released on", "published in", "premiered on"]),
    one("father", "the father of {}", "father son daughter of",
        &["Who is the father of {}?", "Who was {}'s father?"], &[]),
    one("mother", "the mother of {}", "mother",
        &["Who is the mother of {}?", "Who was {}'s mother?"], &[]),
    one("spouse", "the spouse of {}", "married spouse",
        &["Who is the spouse of {}?", "Who did {} marry?"], &["married", "married to"]),
    one("child", "the child of {}", "child", &["Who is the child of {}?"], &[]),
    one("sibling", "the sibling of {}", "brother sister sibling", &["Who is the sibling of {}?"], &[]),
    one("performer", "the performer of {}", "song performed by",
        &["Who performed {}?", "Who is the performer of {}?"], &["performed by", "recorded by", "sung by"]),
    one("composer", "the composer of {}", "music composed by",
        &["Who composed {}?", "Who is the composer of {}?"], &["composed by"]),
    one("cause of death", "the cause of death of {}", "cause of death",
        &["How did {} die?", "What was the cause of death of {}?"], &[]),
    one("award received", "the award that {} received", "award won", &["What award did {} receive?"], &[]),
    one("educated at", "the school where {} studied", "studied at university",
        &["Where did {} study?", "Which school did {} attend?"], &["studied at", "attended", "graduated from"]),
    one("founded by", "the founder of {}", "founded by",
        &["Who founded {}?", "Who is the founder of {}?"], &["was founded by"]),
    one("publisher", "the publisher of {}", "published by",
        &["Who published {}?", "Which company published {}?"], &["published by"]),
    one("inception", "the date when {} was founded", "founded established in",
        &["When was {} founded?", "When was {} established?"], &["founded in", "established in"]),
    one("employer", "the employer of {}", "works for", &["Who does {} work for?"], &[]),
    one("author", "the author of {}", "written by author",
        &["Who wrote {}?", "Who is the author of {}?"], &["written by"]),
    one("producer", "the producer of {}", "produced by",
        &["Who produced {}?", "Who is the producer of {}?"], &["produced by"]),
    one("owner", "the owner of {}", "owned by",
        &["Who owns {}?", "Who is the owner of {}?"], &["owned by"]),
    one("creator", "the creator of {}", "created by",
        &["Who created {}?", "Who is the creator of {}?"], &["created by", "developed by"]),
    one("designer", "the designer of {}", "designed by", &["Who designed {}?"], &["designed by"]),
    one("named after", "what {} is named after", "named after",
        &["What is {} named after?", "Who or what is {} named after?"], &[]),
    one("record label", "the record label of {}", "released by record label",
        &["Which label released {}?", "What record label released {}?"], &["released by"]),
    one("location", "the place where {} is located", "located in",
        &["Where is {} located?", "In what place is {} located?"], &["located in", "is located in"]),
    one("headquarters", "the place where {} is based", "based in headquarters",
        &["Where is {} based?", "Where are the headquarters of {}?"], &["based in"]),
    one("part of", "what {} is part of", "part of", &["What is {} part of?"], &["is part of"]),
    one("mouth", "what {} flows into", "flows into", &["What does {} flow into?"], &["flows into", "flows to"]),
    one("located in the administrative territorial entity", "the place where {} is located", "located in county state",
        &["Where is {} located?"], &[]),
    one("shares border with", "what shares a border with {}", "borders", &["What shares a border with {}?"], &[]),
    one("capital", "the capital of {}", "capital", &["What is the capital of {}?"], &[]),
    one("screenwriter", "the screenwriter of {}", "screenplay written by", &["Who wrote the screenplay of {}?"], &[]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_names_the_subject_once() {
        for relation in RELATIONS {
            for form in relation.asks.iter().chain([&relation.need]) {
                assert_eq!(form.matches("{}").count(), 1, "{}: {form}", relation.name);
            }
        }
    }

    #[test]
    fn relation_names_are_unique() {
        let names: Vec<_> = RELATIONS.iter().flat_map(|r| r.aliases.iter().copied().chain([r.name])).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn only_dates_contain_digits() {
        let admits = |name, object| relation(name).is_some_and(|relation| relation.admits(object));
        assert!(admits("born on", "3 May 1950") && admits("born in", "Paris"));
        assert!(!admits("born in", "1950") && !admits("released in", "France"));
    }
}
