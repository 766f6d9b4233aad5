//! Selects and weighs the phrases that a walk starts from.

use crate::graph::Graph;
use crate::mode::GraphVariant;
use crate::options::GraphOptions;

/// Fact that the search follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct KeptFact {
    /// Number of the fact.
    pub(crate) fact: u32,
    /// Similarity to the query, scaled to [0, 1] over all facts.
    pub(crate) score: f32,
}

/// Phrase that a walk starts from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seed {
    /// Number of the phrase.
    pub(crate) phrase: u32,
    /// Number of passages that name the phrase in a triple.
    pub(crate) passages: usize,
    /// Linking score, by which the list of seeds is cut off.
    pub(crate) linking: f64,
    /// Weight in the reset vector.
    pub(crate) weight: f64,
}

/// Sums over the facts that name one phrase.
struct PhraseScores {
    phrase: u32,
    passages: usize,
    /// Sum of the scores of the facts that name the phrase.
    scores: f64,
    /// Number of these facts.
    times: f64,
    /// Score of the last such fact.
    last: f64,
}

/// Selects the phrases of the kept facts: at most `linking_top_k`, by descending linking score. Ties keep the order in
/// which phrases are first named, a fact's subject before its object.
///
/// A fact gives each of its phrases the fact's score divided by the number of passages that name the phrase. HippoRAG 2
/// takes the mean over the facts, as weight and as linking score (`HippoRAG.py:graph_search_with_fact_entities`).
/// RouteRAG's fork weighs by the last fact alone, and its linking score is the mean of the undivided scores
/// (`RouteRAG.py`, the same function). GraphRAG-R1's fork does the same, but has no phrases without text. Waymark's own
/// search weighs by the mean and links by the sum of the undivided scores, so that phrases of several facts come first.
/// A fact of score 0 gives weight 0.
pub(crate) fn seeds(graph: &Graph, kept: &[KeptFact], options: &GraphOptions) -> Vec<Seed> {
    let mut named: Vec<PhraseScores> = Vec::new();
    for &KeptFact { fact, score } in kept {
        let fact = graph.fact(fact);
        let score = f64::from(score);
        for phrase in [fact.subject, fact.object] {
            if options.variant == GraphVariant::GraphRagR1 && graph.phrase(phrase).is_empty() {
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
    // A stable sort keeps ties in the order in which phrases are first named.
    seeds.sort_by(|a, b| b.linking.total_cmp(&a.linking));
    seeds.truncate(options.linking_top_k);
    seeds
}

impl PhraseScores {
    fn seed(&self, variant: GraphVariant) -> Seed {
        let mean = self.scores / self.times;
        let share = self.passages.max(1) as f64;
        let (linking, weight) = match variant {
            GraphVariant::HippoRag => (mean / share, mean / share),
            GraphVariant::RouteRag | GraphVariant::GraphRagR1 => (mean, self.last / share),
            GraphVariant::Waymark => (self.scores, mean / share),
        };
        Seed { phrase: self.phrase, passages: self.passages, linking, weight }
    }
}
