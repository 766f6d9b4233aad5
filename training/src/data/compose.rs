//! Questions of several hops, composed of what single passages tell: chains, comparisons, and comparisons of what two
//! chains lead to, put as 2WikiMultiHopQA puts them (Ho et al., 2020, §2).

use std::collections::{BTreeMap, HashMap};

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::chain::hop;
use super::compare::{self, Side};
use super::guard::Guard;
use super::lesson::{Close, Hop, Lesson};
use super::person::NATIONALITIES;
use super::relation::relation;
use super::single::Known;
use super::text::{bare, plain, words};
use super::work::is_film;

/// Relations that lead from one thing to the next.
const LINKS: &[&str] = &["director", "performer", "composer", "father", "mother", "spouse"];
/// Relations that a chain may end with.
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
/// Relations of works, which are called by their whole titles.
const WORKS: &[&str] = &["director", "performer", "composer", "publication date", "country of origin"];

/// Nationalities of one country, or of one that was another: whether two of them are the same cannot be told by words.
const AMBIGUOUS: &[&str] = &["Bengali", "British", "English", "Russian", "Scottish", "Soviet", "Welsh", "Yugoslav"];

/// Roles of those who direct, as titles have them in brackets.
#[rustfmt::skip]
const DIRECTING: &[&str] = &[
    "actor", "actress", "animator", "cinematographer", "comedian", "director", "editor", "filmmaker", "playwright",
    "producer", "screenwriter", "writer",
];
/// Roles of those who perform or compose.
#[rustfmt::skip]
const PLAYING: &[&str] = &[
    "actor", "actress", "artist", "band", "composer", "conductor", "dj", "drummer", "duo", "entertainer", "group",
    "guitarist", "musician", "performer", "pianist", "producer", "rapper", "singer", "songwriter", "soprano",
    "violinist",
];

/// Forms of comparisons: the relation, and questions about two things, about two films where those have words of their own,
/// and about what directed two films.
struct Compared {
    relation: &'static str,
    things: &'static [&'static str],
    films: &'static [&'static str],
    directors: &'static [&'static str],
}

#[rustfmt::skip]
const COMPARED: &[Compared] = &[
    Compared { relation: "date of birth",
        things: &["Who was born first, {0} or {1}?", "Who is older, {0} or {1}?", "Who was born earlier, {0} or {1}?",
            "Who was born later, {0} or {1}?", "Who is younger, {0} or {1}?", "Was {0} or {1} born first?"],
        films: &[],
        directors: &["Which film has the director born first, {0} or {1}?", "Which film whose director was born first, {0} or {1}?",
            "Which film has the director who was born earlier, {0} or {1}?", "Which film whose director is younger, {0} or {1}?",
            "Which film has the director born later, {0} or {1}?", "Which film has the director who was born later, {0} or {1}?"] },
    Compared { relation: "date of death",
        things: &["Who died first, {0} or {1}?", "Who died earlier, {0} or {1}?", "Who died later, {0} or {1}?"],
        films: &[],
        directors: &["Which film has the director who died first, {0} or {1}?", "Which film has the director died earlier, {0} or {1}?",
            "Which film has the director who died later, {0} or {1}?", "Which film whose director died later, {0} or {1}?"] },
    Compared { relation: "country of citizenship",
        things: &["Are {0} and {1} of the same nationality?", "Do {0} and {1} have the same nationality?",
            "Are {0} and {1} from the same country?"],
        films: &[],
        directors: &["Do both films {0} and {1} have the directors from the same country?",
            "Do both directors of films {0} and {1} have the same nationality?",
            "Are the directors of the films {0} and {1} from the same country?",
            "Do both films, {0} and {1}, have the directors that share the same nationality?"] },
    Compared { relation: "publication date",
        things: &["Which came out first, {0} or {1}?", "Which came out earlier, {0} or {1}?", "Which came out later, {0} or {1}?"],
        films: &["Which film was released first, {0} or {1}?", "Which film came out first, {0} or {1}?",
            "Which film came out earlier, {0} or {1}?", "Which film was released more recently, {0} or {1}?",
            "Which film was released later, {0} or {1}?"],
        directors: &[] },
    Compared { relation: "country of origin",
        things: &["Are {0} and {1} from the same country?", "Do {0} and {1} come from the same country?"],
        films: &["Are both movies, {0} and {1}, from the same country?", "Are the movies {0} and {1}, from the same country?",
            "Are both films {0} and {1} from the same country?", "Are {0} and {1} from the same country?"],
        directors: &[] },
];

/// Something known, and what is known of its object.
type Chain<'k> = [&'k Known; 2];

/// Lessons composed of what is known, where every thing has one value in a relation. Two of four are chains, one compares
/// and one compares what two chains lead to, for as long as there are any; no subject that a measured question names gets
/// in. Beside them how many were composed and then kept out, for what they ask is measured.
pub fn lessons(known: &[Known], guard: &Guard, dataset: &str, rng: &mut ChaCha8Rng) -> (Vec<Lesson>, usize) {
    let known: Vec<&Known> = known.iter().filter(|one| !guard.names(&one.subject)).collect();
    let mut by_subject: HashMap<String, Vec<&Known>> = HashMap::new();
    for one in &known {
        by_subject.entry(plain(&one.subject)).or_default().push(one);
    }
    let mut chains = Vec::new();
    for first in known.iter().filter(|one| LINKS.contains(&one.relation)) {
        let object = first.objects.first().map(|object| plain(object)).unwrap_or_default();
        let ends = by_subject.get(&object).into_iter().flatten();
        chains.extend(ends.filter(|second| leads_on(first, second)).map(|second| [*first, *second]));
    }
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
    while kinds.iter().any(|kind| kind.len() > 0) {
        all.extend([0, 1, 0, 2].into_iter().filter_map(|kind| kinds[kind].next()));
    }
    let composed = all.len();
    all.retain(|lesson| !guard.takes(lesson));
    let kept_out = composed - all.len();
    for (number, lesson) in all.iter_mut().enumerate() {
        lesson.question_id = format!("{dataset}-{number:05}");
    }
    (all, kept_out)
}

/// One of every group after the other, so that directors, of whom the most is known, do not crowd out families.
fn in_turns(mut groups: Vec<Vec<Lesson>>, rng: &mut ChaCha8Rng) -> Vec<Lesson> {
    groups.iter_mut().for_each(|group| group.shuffle(rng));
    let mut all = Vec::new();
    while groups.iter().any(|group| !group.is_empty()) {
        all.extend(groups.iter_mut().filter_map(Vec::pop));
    }
    all
}

/// Whether a second fact says something new about what the first one leads to.
fn leads_on(first: &Known, second: &Known) -> bool {
    let back = second.objects.iter().any(|object| plain(object) == plain(&first.subject));
    let married = first.relation == "spouse" && second.relation == "spouse";
    ENDS.contains(&second.relation) && !back && !married && fits(first.relation, &second.source.title)
}

/// Whether a relation may lead to who has an article of this title: things are joined by bare names, and "Bob Ray (canoeist)"
/// directs nothing. In brackets stands a role that fits, or a time.
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

/// A chain as a question.
fn asked([first, second]: Chain<'_>, rng: &mut ChaCha8Rng) -> Option<Lesson> {
    let name = name(first, rng);
    let question = match kin(first.relation, second.relation).filter(|_| rng.random_ratio(2, 3)) {
        Some(word) => {
            [format!("Who is {name}'s {word}?"), format!("Who is the {word} of {name}?")].choose(rng)?.clone()
        }
        None => relation(second.relation)?.asks.choose(rng)?.replace("{}", &described(first, &name, rng)),
    };
    let hops = hops([first, second], &name)?.into();
    Some(lesson(question, second.objects.clone(), &[first, second], hops, Close::Last))
}

/// Comparisons of two things, each with another one.
fn compared(form: &Compared, known: &[&Known], rng: &mut ChaCha8Rng) -> Vec<Lesson> {
    let own: Vec<&Known> = known.iter().filter(|one| one.relation == form.relation).copied().collect();
    let make = |one: &&Known| {
        let other = partner(one, &own, |one| one, rng)?;
        let names = [name(one, rng), name(other, rng)];
        let films = !form.films.is_empty() && is_film(&one.source) && is_film(&other.source);
        let question = put(if films { form.films } else { form.things }, &names, rng)?;
        let (gold, why) = outcome(form, &question, &names, [None, None], [value(one), value(other)])?;
        let hops = vec![step(one, &names[0])?, step(other, &names[1])?];
        Some(lesson(question, vec![gold], &[one, other], hops, Close::Because(why)))
    };
    own.iter().filter_map(make).collect()
}

/// Comparisons of what directed two films.
fn bridged(form: &Compared, chains: &[Chain<'_>], rng: &mut ChaCha8Rng) -> Vec<Lesson> {
    let fits = |chain: &&Chain<'_>| chain[0].relation == "director" && chain[1].relation == form.relation;
    let own: Vec<Chain<'_>> = chains.iter().filter(fits).copied().collect();
    let make = |one: &Chain<'_>| {
        let other = *partner(one, &own, |chain| chain[1], rng)?;
        let names = [name(one[0], rng), name(other[0], rng)];
        let question = put(form.directors, &names, rng)?;
        let through = [Some(value(one[0])), Some(value(other[0]))];
        let (gold, why) = outcome(form, &question, &names, through, [value(one[1]), value(other[1])])?;
        let hops = [hops(*one, &names[0])?, hops(other, &names[1])?].concat();
        Some(lesson(question, vec![gold], &[one[0], one[1], other[0], other[1]], hops, Close::Because(why)))
    };
    own.iter().filter_map(make).collect()
}

/// Another one to compare with: half of the time of the same value, for by chance nearly all would differ.
fn partner<'a, T>(one: &T, all: &'a [T], of: impl Fn(&T) -> &Known, rng: &mut ChaCha8Rng) -> Option<&'a T> {
    let same = rng.random_bool(0.5) && !value(of(one)).chars().any(|c| c.is_ascii_digit());
    let apart = |other: &&T| {
        let (one, other) = (of(one), of(other));
        plain(&one.subject) != plain(&other.subject) && (plain(value(one)) == plain(value(other))) == same
    };
    (0..32).filter_map(|_| all.choose(rng)).find(apart)
}

/// The hop to what is known of something called `name`.
fn step(known: &Known, name: &str) -> Option<Hop> {
    Some(hop(relation(known.relation)?, name, value(known), vec![known.source.clone()]))
}

/// The two hops of a chain that begins with something called `name`.
fn hops([first, second]: Chain<'_>, name: &str) -> Option<[Hop; 2]> {
    Some([step(first, name)?, step(second, value(first))?])
}

/// The answer of a comparison, and why.
fn outcome(
    form: &Compared,
    question: &str,
    names: &[String; 2],
    through: [Option<&str>; 2],
    values: [&str; 2],
) -> Option<(String, String)> {
    let side = |at: usize| Side { name: &names[at], through: through[at], value: values[at] };
    let because = |gold: &str| Some((gold.to_owned(), compare::because(question, [side(0), side(1)], gold)?));
    // "US" and "American" are one country in other words.
    let clear = |value: &&str| NATIONALITIES.contains(value) && !AMBIGUOUS.contains(value);
    if form.relation.starts_with("country") && !values.iter().all(clear) {
        return None;
    }
    let golds = if form.relation.contains("date") { [names[0].as_str(), names[1].as_str()] } else { ["yes", "no"] };
    golds.into_iter().find_map(because)
}

/// A form with both names in it.
fn put(forms: &[&str], names: &[String; 2], rng: &mut ChaCha8Rng) -> Option<String> {
    Some(forms.choose(rng)?.replace("{0}", &names[0]).replace("{1}", &names[1]))
}

fn lesson(question: String, golds: Vec<String>, of: &[&Known], hops: Vec<Hop>, close: Close) -> Lesson {
    let supporting = of.iter().map(|known| known.source.id.clone()).collect();
    Lesson { question_id: String::new(), question, golds, supporting, hops, close }
}

fn value(known: &Known) -> &str {
    known.objects.first().map_or("", String::as_str)
}

/// What a thing is called in a question: works by their whole titles. Half of the names begin every word with a capital,
/// as the data set has them.
fn name(known: &Known, rng: &mut ChaCha8Rng) -> String {
    let title = known.source.title.as_str();
    let whole = WORKS.contains(&known.relation) && plain(bare(title)) == plain(&known.subject);
    let name = if whole { title } else { &known.subject };
    if rng.random_bool(0.5) { name.to_owned() } else { capitalized(name) }
}

/// A name with a capital after everything that is no letter, and no others.
fn capitalized(name: &str) -> String {
    let mut before = ' ';
    let turn = |c: char| {
        let turned = if before.is_alphabetic() { c.to_lowercase().next() } else { c.to_uppercase().next() };
        before = c;
        turned.unwrap_or(c)
    };
    name.chars().map(turn).collect()
}

/// The object of a fact by its subject.
fn described(known: &Known, name: &str, rng: &mut ChaCha8Rng) -> String {
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

/// The word for the relative of a relative.
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
    use crate::data::question::{Document, Question};

    fn known(subject: &str, relation: &'static str, object: &str) -> Known {
        let source = Document { id: subject.into(), title: subject.into(), text: format!("{subject}: {object}.") };
        Known { subject: subject.into(), relation, objects: vec![object.into()], source }
    }

    fn facts() -> Vec<Known> {
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

    fn composed(guard: &Guard) -> Vec<Lesson> {
        lessons(&facts(), guard, "c", &mut ChaCha8Rng::seed_from_u64(7)).0
    }

    #[test]
    fn all_kinds_are_composed_and_follow() {
        let all = composed(&Guard::default());
        let hops = |count: usize| all.iter().filter(|lesson| lesson.hops.len() == count).count();
        assert!(hops(2) > 4 && hops(4) > 1, "{all:#?}");
        let bridge = all.iter().find(|lesson| lesson.hops.len() == 4 && lesson.question.starts_with("Which")).unwrap();
        let Close::Because(why) = &bridge.close else { panic!("a comparison has a reason") };
        assert!(why.contains("Ann Lee: 3 May 1950") && why.contains("Bob Ray: May 4, 1949"), "{why}");
        let early = ["first", "earlier"].iter().any(|word| bridge.question.contains(word));
        assert_eq!(bridge.golds, [if early { "High Tide" } else { "Low Tide" }]);
        let needs: Vec<&str> = bridge.hops.iter().map(|hop| hop.need.as_str()).collect();
        assert!(needs.contains(&"the date of birth of Bob Ray") && needs.contains(&"the director of Low Tide"));
        assert!(all.iter().filter(|lesson| lesson.question.starts_with("Are")).all(|lesson| lesson.golds == ["yes"]));
        assert!(all.iter().any(|lesson| lesson.golds == ["Old Lee"] && lesson.hops[0].answer == "Tom Lee"));
    }

    fn form(relation: &str) -> &'static Compared {
        COMPARED.iter().find(|form| form.relation == relation).unwrap()
    }

    #[test]
    fn countries_are_compared_where_they_are_told_in_one_word() {
        let names = ["Ann Lee".to_owned(), "Bob Ray".to_owned()];
        let gold = |values| {
            let (form, question) = (form("country of citizenship"), "Are Ann Lee and Bob Ray from the same country?");
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
            let works: Vec<&Known> = works.iter().collect();
            let lessons = compared(form("publication date"), &works, &mut ChaCha8Rng::seed_from_u64(7));
            assert_eq!(lessons.len(), 2, "{lessons:?}");
            lessons.iter().filter(|lesson| lesson.question.contains("film")).count()
        };
        assert_eq!(films(["drama film", "silent film"]), 2);
        assert_eq!((films(["drama film", "song"]), films(["song", "novel"])), (0, 0));
    }

    #[test]
    fn no_chain_goes_on_with_somebody_of_another_trade() {
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
        assert_eq!(composed(&Guard::default()), composed(&Guard::default()));
    }

    #[test]
    fn nothing_that_a_measured_question_names_is_composed() {
        let mut guard = Guard::default();
        guard.add(&[Question { question: "What else did Ann Lee make?".into(), ..Question::default() }]);
        let all = composed(&guard);
        assert!(!all.is_empty());
        assert!(all.iter().flat_map(|lesson| &lesson.hops).all(|hop| hop.subject != "Ann Lee"));
    }

    #[test]
    fn names_are_capitalized_as_the_data_set_has_them() {
        assert_eq!(capitalized("It's a DJ of II (2004 film)"), "It'S A Dj Of Ii (2004 Film)");
    }
}
