//! Multi-hop questions composed of facts from single passages: chains, comparisons, and comparisons of the ends of two
//! chains, phrased as in 2WikiMultiHopQA (Ho et al., 2020, §2).

use std::collections::{BTreeMap, HashMap};

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::comparison::{self, ComparedItem};
use super::contamination::ContaminationFilter;
use super::lesson::{Conclusion, Hop, Lesson};
use super::multi_hop::hop;
use super::relation::relation;
use super::single_hop::KnownFact;
use super::text::{bare_title, normalized, words};
use super::wikipedia::people::NATIONALITIES;
use super::wikipedia::works::is_film;

/// Relations that lead from one entity to another.
const LINKS: &[&str] = &["director", "performer", "composer", "father", "mother", "spouse"];
/// Relations that may end a chain.
const ENDS: &[&str] = &[
    "date of birth",
    "date of death",
    "place of birth",
    "place of death",
    "country of citizenship",
    "father",
    "mother",
    "spouse",
    "educated at",
    "cause of death",
    "award received",
];
/// Relations of works, which questions name by their full titles.
const WORKS: &[&str] = &["director", "performer", "composer", "publication date", "country of origin"];

/// Nationalities that share a country with another one, or once did: their names do not tell whether two countries are
/// the same.
const AMBIGUOUS: &[&str] = &["Bengali", "British", "English", "Russian", "Scottish", "Soviet", "Welsh", "Yugoslav"];

/// Roles in title brackets that fit a director.
#[rustfmt::skip]
const DIRECTING: &[&str] = &[
    "actor", "actress", "animator", "cinematographer", "comedian", "director", "editor", "filmmaker", "playwright",
    "producer", "screenwriter", "writer",
];
/// Roles in title brackets that fit a performer or composer.
#[rustfmt::skip]
const PLAYING: &[&str] = &[
    "actor", "actress", "artist", "band", "composer", "conductor", "dj", "drummer", "duo", "entertainer", "group",
    "guitarist", "musician", "performer", "pianist", "producer", "rapper", "singer", "songwriter", "soprano",
    "violinist",
];

/// Question forms that compare a relation: of any two entities, of two films if those have forms of their own, and of
/// the directors of two films.
struct ComparisonForms {
    relation: &'static str,
    things: &'static [&'static str],
    films: &'static [&'static str],
    directors: &'static [&'static str],
}

#[rustfmt::skip]
const COMPARED: &[ComparisonForms] = &[
    ComparisonForms { relation: "date of birth",
        things: &["Who was born first, {0} or {1}?", "Who is older, {0} or {1}?", "Who was born earlier, {0} or {1}?",
            "Who was born later, {0} or {1}?", "Who is younger, {0} or {1}?", "Was {0} or {1} born first?"],
        films: &[],
        directors: &["Which film has the director born first, {0} or {1}?", "Which film whose director was born first, {0} or {1}?",
            "Which film has the director who was born earlier, {0} or {1}?", "Which film whose director is younger, {0} or {1}?",
            "Which film has the director born later, {0} or {1}?", "Which film has the director who was born later, {0} or {1}?"] },
    ComparisonForms { relation: "date of death",
        things: &["Who died first, {0} or {1}?", "Who died earlier, {0} or {1}?", "Who died later, {0} or {1}?"],
        films: &[],
        directors: &["Which film has the director who died first, {0} or {1}?", "Which film has the director died earlier, {0} or {1}?",
            "Which film has the director who died later, {0} or {1}?", "Which film whose director died later, {0} or {1}?"] },
    ComparisonForms { relation: "country of citizenship",
        things: &["Are {0} and {1} of the same nationality?", "Do {0} and {1} have the same nationality?",
            "Are {0} and {1} from the same country?"],
        films: &[],
        directors: &["Do both films {0} and {1} have the directors from the same country?",
            "Do both directors of films {0} and {1} have the same nationality?",
            "Are the directors of the films {0} and {1} from the same country?",
            "Do both films, {0} and {1}, have the directors that share the same nationality?"] },
    ComparisonForms { relation: "publication date",
        things: &["Which came out first, {0} or {1}?", "Which came out earlier, {0} or {1}?", "Which came out later, {0} or {1}?"],
        films: &["Which film was released first, {0} or {1}?", "Which film came out first, {0} or {1}?",
            "Which film came out earlier, {0} or {1}?", "Which film was released more recently, {0} or {1}?",
            "Which film was released later, {0} or {1}?"],
        directors: &[] },
    ComparisonForms { relation: "country of origin",
        things: &["Are {0} and {1} from the same country?", "Do {0} and {1} come from the same country?"],
        films: &["Are both movies, {0} and {1}, from the same country?", "Are the movies {0} and {1}, from the same country?",
            "Are both films {0} and {1} from the same country?", "Are {0} and {1} from the same country?"],
        directors: &[] },
];

/// Two facts, the second of which is about the object of the first.
type FactChain<'k> = [&'k KnownFact; 2];

/// Composes lessons from facts with one value per subject and relation. Half of them are chains, a quarter compare two
/// entities, and a quarter compare the ends of two chains, as long as there are any of each kind. Returns the lessons
/// and the number of composed ones that were kept out because a measured question asks for the same. Facts about
/// subjects that a measured question names are not used at all.
pub fn lessons(
    known: &[KnownFact],
    contamination: &ContaminationFilter,
    dataset: &str,
    rng: &mut ChaCha8Rng,
) -> (Vec<Lesson>, usize) {
    let known: Vec<&KnownFact> = known.iter().filter(|one| !contamination.names_entity(&one.subject)).collect();
    let mut by_subject: HashMap<String, Vec<&KnownFact>> = HashMap::new();
    for one in &known {
        by_subject.entry(normalized(&one.subject)).or_default().push(one);
    }
    let mut chains = Vec::new();
    for first in known.iter().filter(|one| LINKS.contains(&one.relation)) {
        let object = first.objects.first().map(|object| normalized(object)).unwrap_or_default();
        let ends = by_subject.get(&object).into_iter().flatten();
        chains.extend(ends.filter(|second| leads_on(first, second)).map(|second| [*first, *second]));
    }
    // Sorted, so that the same seed composes the same lessons in every process.
    let mut ways: BTreeMap<[&str; 2], Vec<Lesson>> = BTreeMap::new();
    for chain in &chains {
        ways.entry(chain.map(|known| known.relation)).or_default().extend(asked(*chain, rng));
    }
    let kinds: [Vec<Vec<Lesson>>; 3] = [
        ways.into_values().collect(),
        COMPARED.iter().map(|form| compared(form, &known, rng)).collect(),
        COMPARED.iter().map(|form| bridged(form, &chains, rng)).collect(),
    ];
    let mut kinds = kinds.map(|groups| in_turns(groups, rng).into_iter());
    let mut all: Vec<Lesson> = Vec::new();
    // Chains appear twice, so that they make up half of the lessons.
    while kinds.iter().any(|kind| kind.len() > 0) {
        all.extend([0, 1, 0, 2].into_iter().filter_map(|kind| kinds[kind].next()));
    }
    let composed = all.len();
    all.retain(|lesson| !contamination.excludes(lesson));
    let kept_out = composed - all.len();
    for (number, lesson) in all.iter_mut().enumerate() {
        lesson.question_id = format!("{dataset}-{number:05}");
    }
    (all, kept_out)
}

/// Takes one lesson of each group in turn, so that directors, the most frequent subject, do not crowd out families.
fn in_turns(mut groups: Vec<Vec<Lesson>>, rng: &mut ChaCha8Rng) -> Vec<Lesson> {
    groups.iter_mut().for_each(|group| group.shuffle(rng));
    let mut all = Vec::new();
    while groups.iter().any(|group| !group.is_empty()) {
        all.extend(groups.iter_mut().filter_map(Vec::pop));
    }
    all
}

/// Returns `true` if `second` states something new about the object of `first`.
fn leads_on(first: &KnownFact, second: &KnownFact) -> bool {
    let back = second.objects.iter().any(|object| normalized(object) == normalized(&first.subject));
    let married = first.relation == "spouse" && second.relation == "spouse";
    ENDS.contains(&second.relation) && !back && !married && fits(first.relation, &second.source.title)
}

/// Returns `true` if the object of `relation` can be the subject of the article with this title. Facts are joined by
/// bare names, so the role in the brackets of a title must fit the relation: "Bob Ray (canoeist)" directs nothing. A
/// time in the brackets fits every relation.
fn fits(relation: &str, title: &str) -> bool {
    let roles = match relation {
        "director" => DIRECTING,
        "performer" | "composer" => PLAYING,
        _ => return true,
    };
    let Some((_, bracket)) = title.split_once(" (") else { return true };
    let told = words(bracket);
    let is_time = told.first().is_some_and(|word| word == "born")
        || told.iter().all(|word| word.chars().all(|c| c.is_ascii_digit()));
    is_time || told.iter().any(|word| roles.contains(&word.as_str()))
}

/// Phrases a chain as a question.
fn asked([first, second]: FactChain<'_>, rng: &mut ChaCha8Rng) -> Option<Lesson> {
    let name = name(first, rng);
    let question = match kin(first.relation, second.relation).filter(|_| rng.random_ratio(2, 3)) {
        Some(word) => {
            [format!("Who is {name}'s {word}?"), format!("Who is the {word} of {name}?")].choose(rng)?.clone()
        }
        None => relation(second.relation)?.asks.choose(rng)?.replace("{}", &described(first, &name, rng)),
    };
    let hops = hops([first, second], &name)?.into();
    Some(lesson("compositional", question, second.objects.clone(), &[first, second], hops, Conclusion::Last))
}

/// Comparisons of each entity with another one.
fn compared(form: &ComparisonForms, known: &[&KnownFact], rng: &mut ChaCha8Rng) -> Vec<Lesson> {
    let own: Vec<&KnownFact> = known.iter().filter(|one| one.relation == form.relation).copied().collect();
    let make = |one: &&KnownFact| {
        let other = partner(one, &own, |one| one, rng)?;
        let names = [name(one, rng), name(other, rng)];
        let films = !form.films.is_empty() && is_film(&one.source) && is_film(&other.source);
        let question = put(if films { form.films } else { form.things }, &names, rng)?;
        let (gold, why) = outcome(form, &question, &names, [None, None], [value(one), value(other)])?;
        let hops = vec![step(one, &names[0])?, step(other, &names[1])?];
        Some(lesson("comparison", question, vec![gold], &[one, other], hops, Conclusion::Because(why)))
    };
    own.iter().filter_map(make).collect()
}

/// Comparisons of the directors of two films.
fn bridged(form: &ComparisonForms, chains: &[FactChain<'_>], rng: &mut ChaCha8Rng) -> Vec<Lesson> {
    let fits = |chain: &&FactChain<'_>| chain[0].relation == "director" && chain[1].relation == form.relation;
    let own: Vec<FactChain<'_>> = chains.iter().filter(fits).copied().collect();
    let make = |one: &FactChain<'_>| {
        let other = *partner(one, &own, |chain| chain[1], rng)?;
        let names = [name(one[0], rng), name(other[0], rng)];
        let question = put(form.directors, &names, rng)?;
        let through = [Some(value(one[0])), Some(value(other[0]))];
        let (gold, why) = outcome(form, &question, &names, through, [value(one[1]), value(other[1])])?;
        let hops = [hops(*one, &names[0])?, hops(other, &names[1])?].concat();
        let facts = [one[0], one[1], other[0], other[1]];
        Some(lesson("bridge_comparison", question, vec![gold], &facts, hops, Conclusion::Because(why)))
    };
    own.iter().filter_map(make).collect()
}

/// Picks another entity to compare with. Half of the time it has the same value, since by chance nearly all values
/// differ.
fn partner<'a, T>(one: &T, all: &'a [T], of: impl Fn(&T) -> &KnownFact, rng: &mut ChaCha8Rng) -> Option<&'a T> {
    // Equal dates have no earlier and no later one, so values with digits always differ.
    let same = rng.random_bool(0.5) && !value(of(one)).chars().any(|c| c.is_ascii_digit());
    let apart = |other: &&T| {
        let one = of(one);
        let other = of(other);
        normalized(&one.subject) != normalized(&other.subject)
            && (normalized(value(one)) == normalized(value(other))) == same
    };
    // A rare value may have no partner, so the draws are bounded.
    (0..32).filter_map(|_| all.choose(rng)).find(apart)
}

/// Creates the hop to a fact about an entity called `name`.
fn step(known: &KnownFact, name: &str) -> Option<Hop> {
    Some(hop(relation(known.relation)?, name, value(known), vec![known.source.clone()]))
}

/// Creates the two hops of a chain that starts with an entity called `name`.
fn hops([first, second]: FactChain<'_>, name: &str) -> Option<[Hop; 2]> {
    Some([step(first, name)?, step(second, value(first))?])
}

/// Answer of a comparison and its explanation. `None` if the values do not decide it.
fn outcome(
    form: &ComparisonForms,
    question: &str,
    names: &[String; 2],
    through: [Option<&str>; 2],
    values: [&str; 2],
) -> Option<(String, String)> {
    let side = |at: usize| ComparedItem { name: &names[at], through: through[at], value: values[at] };
    let because = |gold: &str| Some((gold.to_owned(), comparison::because(question, [side(0), side(1)], gold)?));
    // "US" and "American" are one country in different words, so only listed nationalities are compared.
    let clear = |value: &&str| NATIONALITIES.contains(value) && !AMBIGUOUS.contains(value);
    if form.relation.starts_with("country") && !values.iter().all(clear) {
        return None;
    }
    let golds = if form.relation.contains("date") { [names[0].as_str(), names[1].as_str()] } else { ["yes", "no"] };
    golds.into_iter().find_map(because)
}

/// Fills both names into one of the forms.
fn put(forms: &[&str], names: &[String; 2], rng: &mut ChaCha8Rng) -> Option<String> {
    Some(forms.choose(rng)?.replace("{0}", &names[0]).replace("{1}", &names[1]))
}

/// Creates a lesson. `kind` is the name that 2WikiMultiHopQA has for questions of this form.
fn lesson(
    kind: &str,
    question: String,
    golds: Vec<String>,
    of: &[&KnownFact],
    hops: Vec<Hop>,
    conclusion: Conclusion,
) -> Lesson {
    let supporting = of.iter().map(|known| known.source.id.clone()).collect();
    let kind = Some(kind.to_owned());
    Lesson { question_id: String::new(), question, kind, golds, supporting, partly: false, hops, conclusion }
}

fn value(known: &KnownFact) -> &str {
    known.objects.first().map_or("", String::as_str)
}

/// Name of an entity in a question: works have their full title. Half of the names capitalize every word, as the data
/// set does.
fn name(known: &KnownFact, rng: &mut ChaCha8Rng) -> String {
    let title = known.source.title.as_str();
    let whole = WORKS.contains(&known.relation) && normalized(bare_title(title)) == normalized(&known.subject);
    let name = if whole { title } else { &known.subject };
    if rng.random_bool(0.5) { name.to_owned() } else { capitalized(name) }
}

/// Capitalizes each letter that follows a non-letter and lowers all others.
fn capitalized(name: &str) -> String {
    let mut before = ' ';
    let turn = |c: char| {
        let turned = if before.is_alphabetic() { c.to_lowercase().next() } else { c.to_uppercase().next() };
        before = c;
        turned.unwrap_or(c)
    };
    name.chars().map(turn).collect()
}

/// Describes the object of a fact by its subject, such as "Ann's husband".
fn described(known: &KnownFact, name: &str, rng: &mut ChaCha8Rng) -> String {
    let told = words(&known.source.text);
    let pronoun = told.iter().find(|word| matches!(word.as_str(), "he" | "his" | "she" | "her"));
    match known.relation {
        "director" => format!("the director of film {name}"),
        "performer" => format!("the performer of song {name}"),
        "composer" => format!("the composer of film {name}"),
        "spouse" => match pronoun.map(String::as_str) {
            Some("she" | "her") => format!("{name}'s husband"),
            Some(_) => format!("{name}'s wife"),
            None => format!("the spouse of {name}"),
        },
        parent if rng.random_bool(0.5) => format!("{name}'s {parent}"),
        parent => format!("the {parent} of {name}"),
    }
}

/// English word for a relative of a relative.
fn kin(first: &str, second: &str) -> Option<&'static str> {
    Some(match (first, second) {
        ("father", "father") => "paternal grandfather",
        ("father", "mother") => "paternal grandmother",
        ("mother", "father") => "maternal grandfather",
        ("mother", "mother") => "maternal grandmother",
        ("spouse", "father") => "father-in-law",
        ("spouse", "mother") => "mother-in-law",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::SeedableRng;

    use super::*;
    use crate::lessons::rows::{CorpusPassage, SourceQuestion};

    fn known(subject: &str, relation: &'static str, object: &str) -> KnownFact {
        let source = CorpusPassage { id: subject.into(), title: subject.into(), text: format!("{subject}: {object}.") };
        KnownFact { subject: subject.into(), relation, objects: vec![object.into()], source }
    }

    fn facts() -> Vec<KnownFact> {
        vec![
            known("Low Tide", "director", "Ann Lee"),
            known("High Tide", "director", "Bob Ray"),
            known("Ann Lee", "date of birth", "3 May 1950"),
            known("Bob Ray", "date of birth", "May 4, 1949"),
            known("Ann Lee", "country of citizenship", "Danish"),
            known("Bob Ray", "country of citizenship", "Danish"),
            known("Ann Lee", "father", "Tom Lee"),
            known("Tom Lee", "father", "Old Lee"),
        ]
    }

    fn composed(contamination: &ContaminationFilter) -> Vec<Lesson> {
        lessons(&facts(), contamination, "c", &mut ChaCha8Rng::seed_from_u64(7)).0
    }

    #[test]
    fn all_kinds_of_lessons_are_composed() {
        let all = composed(&ContaminationFilter::default());
        let hops = |count: usize| all.iter().filter(|lesson| lesson.hops.len() == count).count();
        assert!(hops(2) > 4 && hops(4) > 1, "{all:#?}");
        let bridge = all.iter().find(|lesson| lesson.hops.len() == 4 && lesson.question.starts_with("Which")).unwrap();
        let Conclusion::Because(why) = &bridge.conclusion else { panic!("a comparison has a reason") };
        assert!(why.contains("Ann Lee: 3 May 1950") && why.contains("Bob Ray: May 4, 1949"), "{why}");
        let early = ["first", "earlier"].iter().any(|word| bridge.question.contains(word));
        assert_eq!(bridge.golds, [if early { "High Tide" } else { "Low Tide" }]);
        let needs: Vec<&str> = bridge.hops.iter().map(|hop| hop.need.as_str()).collect();
        assert!(needs.contains(&"the date of birth of Bob Ray") && needs.contains(&"the director of Low Tide"));
        assert!(all.iter().filter(|lesson| lesson.question.starts_with("Are")).all(|lesson| lesson.golds == ["yes"]));
        assert!(all.iter().any(|lesson| lesson.golds == ["Old Lee"] && lesson.hops[0].answer == "Tom Lee"));
    }

    fn form(relation: &str) -> &'static ComparisonForms {
        COMPARED.iter().find(|form| form.relation == relation).unwrap()
    }

    #[test]
    fn countries_are_compared_only_by_listed_nationalities() {
        let names = ["Ann Lee".to_owned(), "Bob Ray".to_owned()];
        let gold = |values| {
            let form = form("country of citizenship");
            let question = "Are Ann Lee and Bob Ray from the same country?";
            outcome(form, question, &names, [None, None], values).map(|(gold, _)| gold)
        };
        assert_eq!(gold(["French", "French"]).as_deref(), Some("yes"));
        assert_eq!(gold(["French", "American"]).as_deref(), Some("no"));
        for values in [["US", "American"], ["U.S.", "US"], ["France", "France"], ["British", "French"]] {
            assert_eq!(gold(values), None, "{values:?}");
        }
    }

    #[test]
    fn only_films_are_called_films() {
        let films = |kinds: [&str; 2]| {
            let work = |name: &str, date: &str, kind: &str| {
                let mut work = known(name, "publication date", date);
                work.source.text = format!("{name} is a {date} {kind} by Ann Lee.");
                work
            };
            let works = [work("Low Tide", "1950", kinds[0]), work("High Tide", "1960", kinds[1])];
            let works: Vec<&KnownFact> = works.iter().collect();
            let lessons = compared(form("publication date"), &works, &mut ChaCha8Rng::seed_from_u64(7));
            assert_eq!(lessons.len(), 2, "{lessons:?}");
            lessons.iter().filter(|lesson| lesson.question.contains("film")).count()
        };
        assert_eq!(films(["drama film", "silent film"]), 2);
        assert_eq!((films(["drama film", "song"]), films(["song", "novel"])), (0, 0));
    }

    #[test]
    fn a_chain_continues_only_with_a_fitting_role() {
        let leads = |relation, title: &str| {
            let mut person = known("Ann Lee", "date of birth", "3 May 1950");
            person.source.title = title.to_owned();
            leads_on(&known("Low Tide", relation, "Ann Lee"), &person)
        };
        for title in ["Ann Lee", "Ann Lee (Danish director)", "Ann Lee (born 1950)", "Ann Lee (1950–1999)"] {
            assert!(leads("director", title), "{title}");
        }
        for title in ["Ann Lee (canoeist)", "Ann Lee (footballer, born 1962)", "Ann Lee (song)"] {
            assert!(!leads("director", title) && leads("father", title), "{title}");
        }
        assert!(leads("performer", "Ann Lee (singer)") && !leads("composer", "Ann Lee (director)"));
    }

    #[test]
    fn the_same_seed_composes_the_same() {
        assert_eq!(composed(&ContaminationFilter::default()), composed(&ContaminationFilter::default()));
    }

    #[test]
    fn subjects_of_measured_questions_are_not_composed() {
        let mut contamination = ContaminationFilter::default();
        contamination
            .add(&[SourceQuestion { question: "What else did Ann Lee make?".into(), ..SourceQuestion::default() }]);
        let all = composed(&contamination);
        assert!(!all.is_empty());
        assert!(all.iter().flat_map(|lesson| &lesson.hops).all(|hop| hop.subject != "Ann Lee"));
    }

    #[test]
    fn names_are_capitalized_like_in_the_data_set() {
        assert_eq!(capitalized("It's a DJ of II (2004 film)"), "It'S A Dj Of Ii (2004 Film)");
    }
}
