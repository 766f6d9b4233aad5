//! Phrases for the thoughts of supervised trajectories, with several variants of each.

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use waymark_index::Mode;

use super::reading::{HopFinding, ShownEvidence};
use crate::lessons::lesson::{FindingForm, Hop};

/// Picks one of the forms and fills in `{0}`, `{1}`, ….
fn pick(rng: &mut impl Rng, forms: &[&str], values: &[&str]) -> String {
    let form = forms.choose(rng).copied().unwrap_or_default();
    values.iter().enumerate().fold(form.to_owned(), |text, (at, value)| text.replace(&format!("{{{at}}}"), value))
}

/// First thought of a trajectory.
pub fn opening(rng: &mut impl Rng, hops: &[Hop]) -> String {
    const ONE: &[&str] = &[
        "I need to find {0}.",
        "The question asks for {0}. I should search for it.",
        "To answer, I must find {0}.",
        "I do not know {0}, so I search for it.",
        "I should look up {0}.",
    ];
    const FIRST: &[&str] = &[
        "First I need to find {0}.",
        "This takes more than one step. First I need {0}.",
        "I should start with {0}.",
        "To answer, I first have to find {0}.",
        "The first thing to find is {0}.",
    ];
    let need = hops.first().map_or("", |hop| hop.need.as_str());
    pick(rng, if hops.len() == 1 { ONE } else { FIRST }, &[need])
}

/// First thought before a search for the whole question.
pub fn wide(rng: &mut impl Rng, hops: &[Hop]) -> String {
    const BOTH: &[&str] = &[
        "I need {0}, and then what follows from it. One search may find both.",
        "First I need {0}. I search for the whole question at once.",
        "The question joins several facts, {0} among them. I search for all of it.",
    ];
    pick(rng, BOTH, &[hops.first().map_or("", |hop| hop.need.as_str())])
}

/// Statement of a finding and its meaning.
pub fn found(rng: &mut impl Rng, hop: &Hop, finding: &HopFinding, last: bool) -> String {
    const SAYS: &[&str] =
        &["{0} says: \"{1}\".", "According to {0}, \"{1}\".", "{0}: \"{1}\".", "In {0} I read: \"{1}\"."];
    const VALUE: &[&str] = &["So {0} is {1}.", "That means {0} is {1}.", "So {1} is {0}."];
    const LINK: &[&str] = &["That leads to {1}.", "So it is about {1}.", "So I should look at {1}."];
    let says = pick(rng, SAYS, &[&finding.source, &finding.quote]);
    let means = match hop.finding_form {
        FindingForm::Words => return says,
        FindingForm::Value if last => return says,
        FindingForm::Value if hop.need.contains('"') => {
            pick(rng, &["So it is {1}.", "That is {1}."], &["", &finding.answer])
        }
        FindingForm::Value => pick(rng, VALUE, &[&hop.need, &finding.answer]),
        FindingForm::Link => pick(rng, LINK, &["", &finding.answer]),
    };
    format!("{says} {means}")
}

/// Summary of a finding: the fact, and the answer that it implies (TeaRAG, Table 11).
pub fn implied(rng: &mut impl Rng, hop: &Hop, finding: &HopFinding) -> String {
    const IMPLIES: &[&str] = &[
        "The fact \"{1}\" implies the answer: {2}.",
        "{0} states \"{1}\", which implies the answer: {2}.",
        "From \"{1}\" follows the answer: {2}.",
    ];
    let values = [finding.source.as_str(), &finding.quote, &finding.answer];
    match hop.finding_form {
        FindingForm::Words => pick(rng, &["{0} states \"{1}\".", "The fact is \"{1}\"."], &values),
        FindingForm::Value | FindingForm::Link => pick(rng, IMPLIES, &values),
    }
}

/// Announcement of the next hop.
pub fn next(rng: &mut impl Rng, hop: &Hop) -> String {
    pick(
        rng,
        &["Now I need {0}.", "Next I need to find {0}.", "Now I search for {0}.", "What is missing is {0}."],
        &[&hop.need],
    )
}

/// Statement that this evidence does not hold the needed fact.
pub fn missed(rng: &mut impl Rng, hop: &Hop, shown: &[ShownEvidence<'_>]) -> String {
    if !shown.iter().all(ShownEvidence::is_document) {
        const FACTS: &[&str] =
            &["None of these facts tells {0}.", "The facts do not tell {0}.", "I cannot find {0} in these facts."];
        const MIXED: &[&str] =
            &["None of this tells {0}.", "The evidence does not tell {0}.", "I cannot find {0} in this evidence."];
        let plain = shown.iter().all(ShownEvidence::is_plain_fact);
        return pick(rng, if plain { FACTS } else { MIXED }, &[&hop.need]);
    }
    let titles: Vec<&str> = shown.iter().map(ShownEvidence::title).collect();
    match titles.first().filter(|title| rng.random_ratio(1, 2) && !title.is_empty()) {
        Some(title) => pick(
            rng,
            &["Doc 1 is about {0} and does not tell {1}.", "{0} is not what I need. I still need {1}."],
            &[title, &hop.need],
        ),
        None => pick(
            rng,
            &[
                "None of these documents tells {0}.",
                "The documents do not tell {0}.",
                "I cannot find {0} in these documents.",
            ],
            &[&hop.need],
        ),
    }
}

/// Statement that the last evidence does not hold what the question asks for.
pub fn absent(rng: &mut impl Rng, shown: &[ShownEvidence<'_>]) -> String {
    const ABOUT: &[&str] =
        &["Doc 1 is about {0}, and no document tells what I need.", "{0} is not what I need, and neither is the rest."];
    const NONE: &[&str] = &["None of this tells what I need.", "I cannot find what I need in this evidence."];
    match shown.first().filter(|first| first.is_document() && !first.title().is_empty()) {
        Some(first) => pick(rng, ABOUT, &[first.title()]),
        None => pick(rng, NONE, &[]),
    }
}

/// Announcement of another search after a miss.
pub fn again(rng: &mut impl Rng, mode: Mode, same_mode: bool) -> String {
    let forms: &[&str] = match (same_mode, mode) {
        (true, _) => &["I search with other words.", "I should ask more exactly.", "Let me put it in another way."],
        (false, Mode::Graph) => &["I try the graph.", "The graph may know it.", "I should use the graph instead."],
        (false, Mode::Hybrid) => &["I try graph and passages together.", "I should combine both ways to search."],
        (false, _) => &["I try a plain passage search.", "I should look at the passages instead."],
    };
    pick(rng, forms, &[])
}

/// Reason for withdrawing a search.
pub fn withdrawal(rng: &mut impl Rng) -> String {
    const FORMS: &[&str] =
        &["I withdraw this search.", "That search led nowhere, so I withdraw it.", "I go back before that search."];
    pick(rng, FORMS, &[])
}

/// End of the last thought.
pub fn conclusion(rng: &mut impl Rng, answer: &str) -> String {
    pick(rng, &["So the answer is {0}.", "The answer is {0}.", "That makes the answer {0}."], &[answer])
}

/// End of the last thought if the answer is a guess.
pub fn concession(rng: &mut impl Rng, answer: &str) -> String {
    const FORMS: &[&str] = &[
        "I have searched enough. Most likely the answer is {0}.",
        "More searches would not help. My best answer is {0}.",
        "I stop searching. As far as I can tell, the answer is {0}.",
    ];
    pick(rng, FORMS, &[answer])
}

/// Reason for a last turn that states that nothing was found.
pub fn resignation(rng: &mut impl Rng, hop: &Hop) -> String {
    const FORMS: &[&str] = &[
        "I have searched enough and did not find {0}. I should say so instead of guessing.",
        "More searches would not help: {0} is not there. I must not make up an answer.",
        "I stop searching. Without {0} I cannot answer.",
    ];
    pick(rng, FORMS, &[&hop.need])
}

/// Reason for a last turn that states that nothing was found, where it is not known what was looked for.
pub fn refusal(rng: &mut impl Rng) -> String {
    const FORMS: &[&str] =
        &["I should say so instead of guessing.", "I must not make up an answer.", "Without it I cannot answer."];
    pick(rng, FORMS, &[])
}

/// Answer that states that nothing was found.
pub fn nothing_found(rng: &mut impl Rng) -> String {
    pick(rng, &["I could not find this.", "I could not find an answer."], &[])
}
