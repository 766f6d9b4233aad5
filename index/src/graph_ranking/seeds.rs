//! Which phrases a walk starts from, and with how much weight.

use crate::graph::Graph;
use crate::mode::GraphVariant;
use crate::options::GraphOptions;

/// A fact that is followed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct KeptFact {
    /// Its number.
    pub(crate) fact: u32,
    /// How like the query it is, scaled to [0, 1] over all facts.
    pub(crate) score: f32,
}

/// A phrase that a walk starts from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seed {
    /// Its number.
    pub(crate) phrase: u32,
    /// How many passages name it in a triple.
    pub(crate) passages: usize,
    /// What phrases are cut by.
    pub(crate) linking: f64,
    /// Its weight in the reset.
    pub(crate) weight: f64,
}

/// What is added up for one phrase.
struct PhraseScores {
    phrase: u32,
    passages: usize,
    /// Summed scores of the facts that name it, and how many they are.
    scores: f64,
    times: f64,
    /// The score of the last one.
    last: f64,
}

/// The phrases of the facts that were kept, in their order: at most `linking_top_k`, by falling linking score, equal
/// ones in the order in which they are first named, a fact's subject before its object.
///
/// A fact gives each of its phrases its score over the number of passages that name the phrase. HippoRAG 2 takes the
/// mean of that over the facts, and cuts by it (`HippoRAG.py:graph_search_with_fact_entities`); RouteRAG's fork takes
/// that of the last fact, and cuts by the mean of the scores themselves (`RouteRAG.py`, the same function), as does
/// GraphRAG-R1's, in which there are no phrases without text. A fact of score 0 gives weight 0.
pub(crate) fn seeds(graph: &Graph, kept: &[KeptFact], options: &GraphOptions) -> Vec<Seed> {
    let mut named: Vec<PhraseScores> = Vec::new();
    for &KeptFact { fact, score } in kept {
        let (fact, score) = (graph.fact(fact), f64::from(score));
        for phrase in [fact.subject, fact.object] {
            if options.variant == GraphVariant::GraphR1 && graph.phrase(phrase).is_empty() {
                continue;
            }
            let place = named.iter().position(|named| named.phrase == phrase).unwrap_or_else(|| {
                let passages = graph.passages_of(phrase).len();
                named.push(PhraseScores { phrase, passages, scores: 0.0, times: 0.0, last: 0.0 });
                named.len() - 1
            });
            let named = &mut named[place];
            (named.scores, named.times, named.last) = (named.scores + score, named.times + 1.0, score);
        }
    }
    let mut seeds: Vec<Seed> = named.iter().map(|named| named.seed(options.variant)).collect();
    // The sort is stable, which is what keeps ties in the order in which they are named.
    seeds.sort_by(|a, b| b.linking.total_cmp(&a.linking));
    seeds.truncate(options.linking_top_k);
    seeds
}

impl PhraseScores {
    fn seed(&self, variant: GraphVariant) -> Seed {
        let (mean, share) = (self.scores / self.times, self.passages.max(1) as f64);
        let (linking, weight) = match variant {
            GraphVariant::HippoRag => (mean / share, mean / share),
            GraphVariant::RouteRag | GraphVariant::GraphR1 => (mean, self.last / share),
        };
        Seed { phrase: self.phrase, passages: self.passages, linking, weight }
    }
}
