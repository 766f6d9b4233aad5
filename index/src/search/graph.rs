//! Graph search: HippoRAG 2 and its forks.

use super::SearchContext;
use super::word_weights::WordWeights;
use crate::condition::TopPassages;
use crate::error::IndexError;
use crate::evidence::{Evidence, EvidenceBudget, GraphRank, GraphTrace, Hit, HitPath, HitRank, SeedFact, SeedPhrase};
use crate::filter::FactFilter;
use crate::graph::Graph;
use crate::graph::scale::Scale;
use crate::graph_ranking::{KeptFact, PassageWeights, PathTracer, RankedPassages, Seed, add_named, seeds};
use crate::mode::GraphVariant;
use crate::scored::Scored;

/// Number of passages with a weight of their own in the reset vector of a local walk; HippoRAG 2 retrieves as many.
pub(super) const OWN: usize = 200;
/// Number of evenly spaced passages that estimate the smallest similarity in a large index.
const SAMPLE: usize = 1024;

/// Result of a graph search.
pub(super) struct GraphSearchResult<'a> {
    pub(super) trace: GraphTrace,
    /// Passages, best first.
    pub(super) list: Vec<RankedPassage>,
    facts: Vec<CandidateFact>,
    /// Explanation of the masses. `None` without a walk.
    explanation: Option<WalkExplanation<'a>>,
}

/// Explanation of the masses that a walk gave to passages.
struct WalkExplanation<'a> {
    /// Weights of the passages in the reset vector.
    weights: PassageWeights,
    /// Tracer of paths. `None` if the query does not ask for them.
    tracer: Option<PathTracer<'a>>,
}

/// Passage in the result of a graph search.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankedPassage {
    pub(super) number: u32,
    /// PageRank mass, or the scaled similarity if there was no walk.
    score: f32,
    /// Unscaled similarity, if passages are ranked by it.
    similarity: Option<f32>,
}

/// Fact similar to the query.
#[derive(Debug, Clone, Copy)]
struct CandidateFact {
    fact: u32,
    similarity: f32,
    score: f32,
}

/// Similarities between the query and the passages.
enum PassageSimilarities {
    /// Similarity of every passage, by number.
    All(Vec<f32>),
    /// The most similar passages, best first.
    Nearest(Vec<Scored>),
}

impl SearchContext<'_> {
    pub(super) fn by_graph(&self, graph: &Graph) -> Result<Evidence, IndexError> {
        let result = self.search_graph(graph, self.candidates(), self.query.graph.linking_top_k)?;
        self.check("the passages were read")?;
        let mut budget = self.budget();
        let hits = self.hits(&result, &mut budget)?;
        Ok(Evidence { walk: Some(result.trace), ..self.evidence(hits, &budget) })
    }

    /// Converts the passages of a graph search to hits, as far as the budget reaches.
    pub(super) fn hits(
        &self,
        result: &GraphSearchResult<'_>,
        budget: &mut EvidenceBudget,
    ) -> Result<Vec<Hit>, IndexError> {
        let candidates: Vec<(u32, f32)> = result.list.iter().map(|reached| (reached.number, reached.score)).collect();
        let path = |place, _| {
            let mut path = HitPath::default();
            result.show(place, &mut path);
            path
        };
        self.ranked_hits(&candidates, path, budget)
    }

    /// Searches the graph for `limit` passages. Looks up `facts` facts, of which only the first `linking_top_k` can be
    /// followed.
    pub(super) fn search_graph<'a>(
        &self,
        graph: &'a Graph,
        limit: usize,
        facts: usize,
    ) -> Result<GraphSearchResult<'a>, IndexError> {
        let options = &self.query.graph;
        let vector = self.vector()?;
        self.check("the facts were searched")?;
        let facts = candidates(graph, vector, facts);
        let followed = &facts[..options.linking_top_k.min(facts.len())];
        let filter = self.index.filter.as_deref();
        // `None` means no filter, which differs from a filter that keeps nothing.
        let places = filter.map(|filter| self.filter(filter, graph, followed)).transpose()?;
        let kept: Vec<KeptFact> = match &places {
            Some(places) => places.iter().map(|&place| followed[place].kept()).collect(),
            None => followed.iter().map(CandidateFact::kept).collect(),
        };
        let mut seeds = seeds(graph, &kept, options);
        let is_own = options.variant == GraphVariant::Waymark;
        if is_own && !kept.is_empty() {
            add_named(graph, self.text, &mut seeds);
        }
        self.check("the passages were scored")?;
        let trace = self.trace(graph, followed, places, &seeds);
        // The scale covers all passages, allowed or not, so scores do not depend on a condition.
        let (similar, scale) = self.similar(vector, limit)?;
        if kept.is_empty() {
            let list = self.nearest(similar, vector, limit)?.ranked(scale, self.wanted(limit));
            return Ok(GraphSearchResult { trace, list, facts, explanation: None });
        }
        let words = match is_own {
            true => self.weights_by_words(graph, options.passage_weight)?,
            false => WordWeights { share: 1.0, added: Vec::new() },
        };
        self.check("the walk")?;
        // The passages' own weights are small (0.05 in HippoRAG 2), but the only way to passages that no fact links.
        let weights = similar.weights(scale, options.passage_weight * words.share, &words.added);
        let ranker = &self.index.snapshot.ranker;
        let RankedPassages { best, missing } = ranker.rank(graph, options, &seeds, &weights, self.wanted(limit));
        let reached = |Scored { number, score }| RankedPassage { number, score, similarity: None };
        let list = best.into_iter().map(reached).collect();
        let trace = GraphTrace { missing, ..trace };
        let tracer = self.query.explain.then(|| PathTracer::new(graph, options.variant, &seeds));
        let explanation = Some(WalkExplanation { weights, tracer });
        Ok(GraphSearchResult { trace, list, facts, explanation })
    }

    /// Describes a search before its walk. `kept` holds the places of the facts that the filter kept; without a filter,
    /// it is `None`, and all facts are kept.
    fn trace(&self, graph: &Graph, followed: &[CandidateFact], kept: Option<Vec<usize>>, seeds: &[Seed]) -> GraphTrace {
        let options = &self.query.graph;
        let is_kept = |place: usize| kept.as_ref().is_none_or(|kept| kept.contains(&place));
        let facts = followed.iter().enumerate().map(|(place, fact)| fact.shown(graph, is_kept(place)));
        let facts: Vec<SeedFact> = facts.collect();
        let phrases = seeds.iter().map(|seed| SeedPhrase {
            phrase: graph.phrase(seed.phrase).to_owned(),
            passages: seed.passages,
            linking: seed.linking,
            weight: seed.weight,
        });
        GraphTrace {
            variant: options.variant,
            damping: options.damping,
            passage_weight: options.passage_weight,
            fallback: !facts.iter().any(|fact| fact.kept),
            facts,
            kept: kept.unwrap_or_default(),
            phrases: phrases.collect(),
            local: !self.index.snapshot.ranker.is_whole(),
            missing: 0.0,
        }
    }

    /// Asks the filter for the places of the facts to follow.
    fn filter(
        &self,
        filter: &dyn FactFilter,
        graph: &Graph,
        facts: &[CandidateFact],
    ) -> Result<Vec<usize>, IndexError> {
        if facts.is_empty() {
            return Ok(Vec::new());
        }
        self.check("the facts were filtered")?;
        let texts = facts.iter().map(|candidate| {
            let fact = graph.fact(candidate.fact);
            [graph.phrase(fact.subject), fact.relation, graph.phrase(fact.object)]
        });
        let texts: Vec<[&str; 3]> = texts.collect();
        let mut kept = filter.keep(self.text, &texts).map_err(|source| IndexError::Filter { source })?;
        if let Some(place) = kept.iter().find(|place| **place >= facts.len()) {
            let source = format!("it keeps the fact at place {place} of {}", facts.len()).into();
            return Err(IndexError::Filter { source });
        }
        // A filter may repeat facts; more than this many are never followed.
        kept.truncate(self.query.graph.linking_top_k);
        Ok(kept)
    }

    /// Returns the similarity of every passage or, in a large index, of at least the `limit` best, and the scale over
    /// all passages. In a large index a sample estimates the smallest similarity.
    fn similar(&self, vector: &[f32], limit: usize) -> Result<(PassageSimilarities, Scale), IndexError> {
        let dense = &self.index.snapshot.dense;
        if self.index.snapshot.ranker.is_whole() {
            let scores = dense.scores(vector);
            let scale = Scale::of(scores.iter().copied());
            return Ok((PassageSimilarities::All(scores), scale));
        }
        let best = dense.search(vector, limit.max(OWN), self.query.deadline, None)?;
        let scale = Scale::of(dense.sample(vector, SAMPLE).into_iter().chain(best.iter().map(|scored| scored.score)));
        Ok((PassageSimilarities::Nearest(best), scale))
    }

    /// Returns `similar` if it contains the best `limit` allowed passages, and searches for these otherwise.
    fn nearest(
        &self,
        similar: PassageSimilarities,
        vector: &[f32],
        limit: usize,
    ) -> Result<PassageSimilarities, IndexError> {
        if self.allowed.is_none() || matches!(similar, PassageSimilarities::All(_)) {
            return Ok(similar);
        }
        let dense = &self.index.snapshot.dense;
        Ok(PassageSimilarities::Nearest(dense.search(vector, limit, self.query.deadline, self.allowed)?))
    }
}

/// Returns the facts most similar to the query with their exact scores, best first, ties by number.
fn candidates(graph: &Graph, vector: &[f32], count: usize) -> Vec<CandidateFact> {
    let Some(found) = graph.nearest_facts(vector, count, |_| true) else { return Vec::new() };
    let scale = Scale::new(found.least, found.largest);
    let candidate =
        |Scored { number, score }| CandidateFact { fact: number, similarity: score, score: scale.apply(score) };
    found.best.into_iter().map(candidate).collect()
}

impl CandidateFact {
    fn kept(&self) -> KeptFact {
        KeptFact { fact: self.fact, score: self.score }
    }

    fn shown(&self, graph: &Graph, kept: bool) -> SeedFact {
        let fact = graph.fact(self.fact);
        SeedFact {
            subject: graph.phrase(fact.subject).to_owned(),
            relation: fact.relation.to_owned(),
            object: graph.phrase(fact.object).to_owned(),
            similarity: self.similarity,
            score: self.score,
            kept,
        }
    }
}

impl PassageSimilarities {
    /// Ranks passages by scaled similarity, for searches without a fact to follow.
    fn ranked(&self, scale: Scale, wanted: TopPassages<'_>) -> Vec<RankedPassage> {
        let scored = match self {
            PassageSimilarities::All(scores) => {
                let scored = scores.iter().zip(0..).map(|(&score, number)| Scored { number, score });
                // Numbers that are not in use have no score.
                wanted.best(scored.filter(|scored| !scored.score.is_nan()))
            }
            PassageSimilarities::Nearest(scored) => scored.iter().take(wanted.limit).copied().collect(),
        };
        let reached =
            |Scored { number, score }| RankedPassage { number, score: scale.apply(score), similarity: Some(score) };
        scored.into_iter().map(reached).collect()
    }

    /// Computes the weight of each passage in the reset vector, including the weights in `words`. The reference scales
    /// twice, which equals scaling once.
    fn weights(&self, scale: Scale, weight: f64, words: &[(u32, f32)]) -> PassageWeights {
        let own = |score: f32| (f64::from(scale.apply(score)) * weight) as f32;
        match self {
            PassageSimilarities::All(scores) => {
                let mut weights: Vec<f32> = scores.iter().map(|&score| own(score)).collect();
                words.iter().for_each(|&(number, more)| weights[number as usize] += more);
                PassageWeights::Every(weights)
            }
            PassageSimilarities::Nearest(scored) => {
                let scored = scored.iter().take(OWN).map(|scored| (scored.number, own(scored.score)));
                let mut weights: Vec<(u32, f32)> = scored.collect();
                for &(number, more) in words {
                    match weights.iter_mut().find(|(other, _)| *other == number) {
                        Some((_, weight)) => *weight += more,
                        None => weights.push((number, more)),
                    }
                }
                PassageWeights::Some(weights)
            }
        }
    }
}

impl GraphSearchResult<'_> {
    /// Records in `path` the rank of the passage at `place`.
    pub(super) fn show(&self, place: usize, path: &mut HitPath) {
        let Some(reached) = self.list.get(place) else { return };
        if let Some(score) = reached.similarity {
            path.dense = path.dense.or(Some(HitRank { rank: place + 1, score }));
        }
        if let Some(WalkExplanation { weights, tracer }) = &self.explanation {
            path.graph = Some(GraphRank {
                rank: place + 1,
                mass: f64::from(reached.score),
                reset: f64::from(weights.of(reached.number)),
                via: tracer.as_ref().map(|tracer| tracer.path_to(reached.number)).unwrap_or_default(),
            });
        }
    }

    /// Facts to return, with scores: the facts that the filter kept, in its order, or all facts given to the filter if
    /// it kept none; without a filter, all facts found.
    pub(super) fn returned(&self) -> Vec<(u32, f32)> {
        let pair = |candidate: &CandidateFact| (candidate.fact, candidate.score);
        let candidates = || self.facts.iter().map(pair).collect();
        // `kept` is empty without a filter too; a filter that has kept nothing leaves all its facts unmarked.
        let filtered = self.trace.facts.iter().any(|fact| !fact.kept) || !self.trace.kept.is_empty();
        match (filtered, self.trace.kept.as_slice()) {
            (false, _) => candidates(),
            (true, []) => self.facts.iter().take(self.trace.facts.len()).map(pair).collect(),
            (true, kept) => kept.iter().map(|&place| pair(&self.facts[place])).collect(),
        }
    }
}
