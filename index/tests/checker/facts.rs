//! Checks facts, and the phrases that they name.

use std::collections::HashMap;

use waymark_index::graph::Graph;
use waymark_index::{Evidence, GraphTrace, GraphVariant, SeedFact, SeedPhrase};

use super::names::names;
use super::numbers::{dot, has_rank, min_max, near};
use super::{Seen, Wrong, hold};

/// Similarities and scores of all facts.
pub struct Scores {
    similarity: Vec<f64>,
    score: Vec<f64>,
    /// Facts in the trace.
    shown: Vec<u32>,
}

fn find(graph: &Graph, subject: &str, relation: &str, object: &str) -> Option<u32> {
    let subject = graph.phrase_id(subject)?;
    let object = graph.phrase_id(object)?;
    (0..graph.facts() as u32).find(|&number| {
        let fact = graph.fact(number);
        fact.subject == subject && fact.object == object && fact.relation == relation
    })
}

/// Checks the facts linked to the query.
pub fn check(seen: &Seen<'_>, walk: &GraphTrace) -> Result<Scores, String> {
    let graph = seen.index.graph().unwrap();
    let similarity: Vec<f64> = (0..graph.facts() as u32).map(|f| dot(&seen.vector, graph.fact_vector(f))).collect();
    let score = min_max(&similarity);
    let wanted = seen.query.graph.linking_top_k.min(graph.facts());
    hold!(walk.facts.len() == wanted, "{} facts instead of {wanted}", walk.facts.len());
    let mut shown = Vec::new();
    for (fact, rank) in walk.facts.iter().zip(1..) {
        let SeedFact { subject, relation, object, .. } = fact;
        let number = find(graph, subject, relation, object).ok_or_else(|| format!("no such fact: {fact:?}"))?;
        hold!(!shown.contains(&number), "a fact stands there twice");
        shown.push(number);
        let alike = similarity[number as usize];
        let scaled = score[number as usize];
        hold!(near(f64::from(fact.similarity), alike), "{fact:?} has similarity {alike}");
        hold!(near(f64::from(fact.score), scaled), "{fact:?} has score {scaled}");
        hold!(has_rank(&similarity, alike, rank, 1e-6), "{fact:?} has not rank {rank}");
    }
    let places: Vec<usize> = (0..walk.facts.len()).filter(|place| walk.facts[*place].kept).collect();
    let mut kept = walk.kept.clone();
    kept.sort_unstable();
    kept.dedup();
    hold!(kept == places || (walk.kept.is_empty() && places.len() == walk.facts.len()), "kept are {kept:?}");
    hold!(walk.fallback == places.is_empty(), "fallback is {}", walk.fallback);
    Ok(Scores { similarity, score, shown })
}

/// Collects the scores of the facts that name each phrase, in order.
fn naming(graph: &Graph, walk: &GraphTrace, scores: &Scores) -> Vec<(u32, Vec<f64>)> {
    let all: Vec<usize> = (0..walk.facts.len()).collect();
    let kept = match (walk.kept.is_empty(), walk.fallback) {
        (true, false) => &all,
        _ => &walk.kept,
    };
    let mut named: Vec<(u32, Vec<f64>)> = Vec::new();
    for &place in kept {
        let number = scores.shown[place];
        let fact = graph.fact(number);
        for phrase in [fact.subject, fact.object] {
            if walk.variant == GraphVariant::GraphRagR1 && graph.phrase(phrase).is_empty() {
                continue;
            }
            let score = scores.score[number as usize];
            match named.iter_mut().find(|(other, _)| *other == phrase) {
                Some((_, list)) => list.push(score),
                None => named.push((phrase, vec![score])),
            }
        }
    }
    named
}

/// Checks the seed phrases: those of linked facts, then others that the question names.
pub fn check_seeds(seen: &Seen<'_>, walk: &GraphTrace, scores: &Scores) -> Wrong {
    let graph = seen.index.graph().unwrap();
    let linked = naming(graph, walk, scores);
    let wanted = seen.query.graph.linking_top_k.min(linked.len());
    hold!(walk.phrases.len() >= wanted, "{} phrases instead of {wanted}", walk.phrases.len());
    let named = named(seen, walk);
    let (seeds, further) = walk.phrases.split_at(wanted);
    check_linked(seen, seeds, walk.variant, &linked, &named)?;
    let phrases: Vec<Option<u32>> = seeds.iter().map(|seed| graph.phrase_id(&seed.phrase)).collect();
    let rest: Vec<u32> = named.into_iter().filter(|phrase| !phrases.contains(&Some(*phrase))).collect();
    hold!(further.len() == rest.len(), "{} phrases are named instead of {}", further.len(), rest.len());
    for (seed, phrase) in further.iter().zip(rest) {
        let passages = graph.passages_of(phrase).len();
        hold!(seed.phrase == graph.phrase(phrase), "{seed:?} is not {:?}", graph.phrase(phrase));
        hold!(seed.passages == passages, "{seed:?} is in other passages");
        hold!(near(seed.linking, 1.0), "{seed:?} has linking score 1");
        hold!(near(seed.weight, 1.0 / passages.max(1) as f64), "{seed:?} has another weight");
    }
    Ok(())
}

/// Returns the phrases that the question names, if the walk starts from them.
fn named(seen: &Seen<'_>, walk: &GraphTrace) -> Vec<u32> {
    if walk.variant != GraphVariant::Waymark || walk.fallback {
        return Vec::new();
    }
    let graph = seen.index.graph().unwrap();
    let names = names(seen.query.text.trim(), |name| graph.phrase_id(name).is_some());
    names.iter().filter_map(|name| graph.phrase_id(name)).collect()
}

/// Checks the seeds that facts name.
fn check_linked(
    seen: &Seen<'_>,
    seeds: &[SeedPhrase],
    variant: GraphVariant,
    linked: &[(u32, Vec<f64>)],
    named: &[u32],
) -> Wrong {
    let graph = seen.index.graph().unwrap();
    let sum = |list: &[f64]| list.iter().sum::<f64>();
    let mean = |list: &[f64]| sum(list) / list.len() as f64;
    let known: HashMap<u32, (usize, f64, f64)> = linked
        .iter()
        .enumerate()
        .map(|(place, (phrase, list))| {
            let share = graph.passages_of(*phrase).len().max(1) as f64;
            let (linking, weight) = match variant {
                GraphVariant::HippoRag => (mean(list) / share, mean(list) / share),
                GraphVariant::Waymark if named.contains(phrase) => (sum(list), mean(list).max(1.0) / share),
                GraphVariant::Waymark => (sum(list), mean(list) / share),
                GraphVariant::RouteRag | GraphVariant::GraphRagR1 => (mean(list), list[list.len() - 1] / share),
            };
            (*phrase, (place, linking, weight))
        })
        .collect();
    let linkings: Vec<f64> = known.values().map(|(_, linking, _)| *linking).collect();
    let mut before: Option<(f64, usize)> = None;
    for (seed, rank) in seeds.iter().zip(1..) {
        let phrase = graph.phrase_id(&seed.phrase).ok_or_else(|| format!("no phrase {:?}", seed.phrase))?;
        let (place, linking, weight) = *known.get(&phrase).ok_or_else(|| format!("{seed:?} is named by no fact"))?;
        hold!(seed.passages == graph.passages_of(phrase).len(), "{seed:?} is in other passages");
        hold!(near(seed.linking, linking), "{seed:?} has linking score {linking}");
        hold!(near(seed.weight, weight), "{seed:?} has weight {weight}");
        hold!(has_rank(&linkings, linking, rank, 1e-5), "{seed:?} has not rank {rank}");
        let ordered = before.is_none_or(|(score, at)| seed.linking < score || (seed.linking == score && at < place));
        hold!(ordered, "{seed:?} stands behind one that comes after it");
        before = Some((seed.linking, place));
    }
    Ok(())
}

/// Checks the triples returned with the passages.
pub fn check_triples(seen: &Seen<'_>, evidence: &Evidence, walk: &GraphTrace) -> Wrong {
    let graph = seen.index.graph().unwrap();
    let similarity: Vec<f64> = (0..graph.facts() as u32).map(|f| dot(&seen.vector, graph.fact_vector(f))).collect();
    let score = min_max(&similarity);
    let filtered = walk.facts.iter().any(|fact| !fact.kept) || !walk.kept.is_empty();
    let available = match (filtered, walk.kept.len()) {
        (false, _) => graph.facts(),
        (true, 0) => walk.facts.len(),
        (true, kept) => kept,
    };
    let wanted = seen.query.triples.min(available);
    hold!(evidence.triples.len() == wanted, "{} triples instead of {wanted}", evidence.triples.len());
    for (triple, place) in evidence.triples.iter().zip(0..) {
        hold!(triple.rank == place + 1, "triple {place} has rank {}", triple.rank);
        let number = find(graph, &triple.subject, &triple.relation, &triple.object).ok_or("no such fact")?;
        hold!(near(f64::from(triple.score), score[number as usize]), "{triple:?} has another score");
        let passages = graph.passages_of_fact(number).iter().take(10);
        let same = passages.len() == triple.passages.len()
            && passages.zip(&triple.passages).all(|(at, id)| seen.index.number(id).unwrap() == Some(*at));
        hold!(same, "{triple:?} is stated by other passages");
        if walk.kept.is_empty() {
            hold!(has_rank(&similarity, similarity[number as usize], place + 1, 1e-6), "{triple:?} is out of order");
        } else {
            let fact = &walk.facts[walk.kept[place]];
            let same =
                (&fact.subject, &fact.relation, &fact.object) == (&triple.subject, &triple.relation, &triple.object);
            hold!(same, "{triple:?} is not the fact that was kept");
        }
    }
    Ok(())
}
