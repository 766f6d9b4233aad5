//! Finds the chunks, triples and entities for a question's association graph, and ranks them.

use std::collections::BTreeSet;

use super::association_graph::{AssociationGraph, ChunkNode, NodeMasses, RankedItem, TripleNode};
use super::question_entities::linked;
use super::relevance::{RelevanceSource, RelevantItem};
use crate::condition::AllowedPassages;
use crate::dense::dot;
use crate::error::IndexError;
use crate::evidence::{
    Evidence, EvidenceBudget, GraphRank, Hit, HitPath, HitRank, KagChunk, KagTrace, KagTriple, KeyEntity, LinkedPhrase,
};
use crate::graph::Graph;
use crate::graph::phrase::normalize;
use crate::hits::{passages_stating, worded};
use crate::index::Index;
use crate::query::Query;
use crate::scored::Scored;
use crate::search::EMBEDDED;
use crate::store::PassageName;

/// Maximum number of characters of the question that are embedded with each key entity; embedders read no further.
const LONGEST_ASKED: usize = 2048;

/// Entity that a question is about: as written, and in the graph's normal form.
struct QueryEntity {
    text: String,
    name: String,
    given: bool,
}

/// Chunks, phrases and facts found for a question.
struct KagCandidates {
    keys: Vec<QueryEntity>,
    /// Phrases found for each key entity.
    phrases: Vec<Vec<Scored>>,
    chunks: Vec<RelevantItem>,
    /// ID of each chunk.
    ids: Vec<String>,
    /// Chunk titles in normal form.
    titles: Vec<String>,
    facts: Vec<RelevantItem>,
    /// Indices of the chunks that state each fact.
    sources: Vec<Vec<usize>>,
}

/// Answers a query in [`Mode::Kag`](crate::Mode::Kag): TeaRAG §4.1 and §4.2. If the index has a reranker and the query
/// does not turn it off, chunks and triples are chosen and weighed by it, as in TeaRAG; the phrases of an entity are
/// chosen by embeddings alone.
///
/// Chunks are the passages most similar to the question. For each key entity, the search finds the phrases most similar
/// to `Key entity: {e}. Query: {q}`; without a key entity, those most similar to the question. Among all facts that
/// name one of these phrases, it takes the facts most similar to the question. It returns the best `k` of chunks and
/// facts, ranked together; ties list chunks first, then the more similar. Facts are returned in the words of a passage
/// ([`worded`]). `text` is the query text without surrounding white space; `allowed` restricts chunks and facts.
pub(crate) fn search(
    index: &Index,
    graph: &Graph,
    query: &Query,
    text: &str,
    allowed: Option<&AllowedPassages>,
) -> Result<Evidence, IndexError> {
    let found = find(index, graph, query, text, allowed)?;
    query.enter_stage("the graph was made")?;
    let chunks: Vec<ChunkNode<'_>> = found
        .chunks
        .iter()
        .zip(&found.titles)
        .map(|(chunk, title)| ChunkNode { relevance: chunk.relevance, title })
        .collect();
    let statements: Vec<TripleNode<'_>> = found
        .facts
        .iter()
        .zip(&found.sources)
        .map(|(scored, sources)| {
            let fact = graph.fact(scored.number);
            let head = graph.phrase(fact.subject);
            let tail = graph.phrase(fact.object);
            TripleNode { relevance: scored.relevance, head, tail, sources: sources.clone() }
        })
        .collect();
    let keys: Vec<String> = found.keys.iter().map(|key| key.name.clone()).collect();
    let association = AssociationGraph::new(&chunks, &statements, &keys, &query.kag);
    let masses = association.walk(&query.kag);
    let mut evidence = Evidence::of(index.manifest().snapshot, query.mode, Vec::new());
    let mut budget = EvidenceBudget::new(query.bytes);
    for ((item, mass), rank) in masses.best(query.k).into_iter().zip(1..) {
        match item {
            RankedItem::ChunkNode(place) => {
                evidence.hits.extend(budget.hit(|| found.hit(index, place, rank, mass))?);
            }
            RankedItem::Triple(place) => {
                let fact = found.facts[place].number;
                let read = || {
                    let hit = index.triple_hit(graph, fact, rank, mass as f32, allowed)?;
                    worded(graph, fact, hit, allowed)
                };
                evidence.triples.extend(budget.triple(read)?);
            }
        }
    }
    evidence.left_out = budget.left_out();
    evidence.association = Some(found.shown(graph, query, &masses));
    Ok(evidence)
}

fn find(
    index: &Index,
    graph: &Graph,
    query: &Query,
    text: &str,
    allowed: Option<&AllowedPassages>,
) -> Result<KagCandidates, IndexError> {
    let options = &query.kag;
    let source = RelevanceSource::new(index, query, text)?;
    let keys = keys(graph, query, text);
    query.enter_stage(EMBEDDED)?;
    // Cuts at a character boundary.
    let end = text.char_indices().nth(LONGEST_ASKED).map_or(text.len(), |(end, _)| end);
    let asked = keys.iter().map(|key| format!("Key entity: {}. Query: {}", key.text, &text[..end]));
    let asked: Vec<String> = asked.collect();
    let texts: Vec<&str> = std::iter::once(text).chain(asked.iter().map(String::as_str)).collect();
    let vectors = index.embed_query(query, &texts)?;
    query.enter_stage("the vector search")?;
    let question = &vectors[0];
    let dense = &index.snapshot.dense;
    // At least `k`, as all results may be chunks.
    let wanted = options.chunks.max(query.k);
    let chunks = dense.search(question, source.candidates(wanted), query.deadline, allowed)?;
    let chunks = source.judge(chunks, wanted, |number| index.text(number))?;
    // Without a key entity, the question itself takes its place.
    let about = if keys.is_empty() { &vectors[..] } else { &vectors[1..] };
    let phrases = about.iter().map(|vector| {
        query.enter_stage("the phrases were searched")?;
        Ok(nearest(graph, vector, options.entities))
    });
    let phrases = phrases.collect::<Result<Vec<_>, IndexError>>()?;
    query.enter_stage("the facts were searched")?;
    let stated = |fact: &u32| passages_stating(graph, *fact, allowed).next().is_some();
    // Filtered before the best are taken, so that a condition does not shorten the list.
    let facts = facts_of(graph, &phrases).into_iter().filter(stated);
    let facts = facts.map(|fact| Scored { number: fact, score: dot(question, graph.fact_vector(fact)) });
    let wanted = options.triples.max(query.k);
    let facts = graph.best_facts(facts.collect(), source.candidates(wanted));
    let facts = source.judge(facts, wanted, |number| Ok(statement(graph, number)))?;
    query.enter_stage("the passages were read")?;
    let names = chunks.iter().map(|chunk| index.snapshot.store.name(chunk.number));
    let names = names.collect::<Result<Vec<PassageName>, IndexError>>()?;
    let named = |PassageName { id, title }| (id, normalize(&title));
    let (ids, titles): (Vec<String>, Vec<String>) = names.into_iter().map(named).unzip();
    let sources = facts.iter().map(|fact| {
        let stating = graph.passages_of_fact(fact.number);
        (0..chunks.len()).filter(|&place| stating.binary_search(&chunks[place].number).is_ok()).collect()
    });
    let sources = sources.collect();
    Ok(KagCandidates { keys, phrases, chunks, ids, titles, facts, sources })
}

/// Returns the words of a fact.
fn statement(graph: &Graph, number: u32) -> String {
    let fact = graph.fact(number);
    [graph.phrase(fact.subject), fact.relation, graph.phrase(fact.object)].join(" ")
}

/// Returns the key entities of a query, or else of its text, without repeated names.
fn keys(graph: &Graph, query: &Query, text: &str) -> Vec<QueryEntity> {
    let mut keys: Vec<QueryEntity> = Vec::new();
    for entity in &query.entities {
        let name = normalize(entity);
        if !name.is_empty() && !keys.iter().any(|key| key.name == name) {
            keys.push(QueryEntity { text: entity.trim().to_owned(), name, given: true });
        }
    }
    if keys.is_empty() {
        let linked = linked(text, &|phrase| graph.phrase_id(phrase).is_some());
        keys.extend(linked.into_iter().map(|name| QueryEntity { text: name.clone(), name, given: false }));
    }
    keys
}

/// Returns the phrases most similar to a vector, without the empty phrase, which stands for text without ASCII letters
/// or digits.
fn nearest(graph: &Graph, vector: &[f32], count: usize) -> Vec<Scored> {
    graph.nearest_phrases(vector, count, |phrase| !graph.phrase(phrase).is_empty())
}

/// Returns every fact that names one of the phrases.
fn facts_of(graph: &Graph, phrases: &[Vec<Scored>]) -> BTreeSet<u32> {
    let phrases: BTreeSet<u32> = phrases.iter().flatten().map(|scored| scored.number).collect();
    let mut facts = BTreeSet::new();
    for &phrase in &phrases {
        for &passage in graph.passages_of(phrase) {
            // The graph has no list of the facts of a phrase, but every passage that names the phrase has a list of its
            // facts.
            facts.extend(graph.facts_of(passage).iter().filter(|&&number| {
                let fact = graph.fact(number);
                fact.subject == phrase || fact.object == phrase
            }));
        }
    }
    facts
}

impl KagCandidates {
    fn hit(&self, index: &Index, place: usize, rank: usize, mass: f64) -> Result<Hit, IndexError> {
        let RelevantItem { number, similarity, rank: dense_rank, rerank, .. } = self.chunks[place];
        let dense = HitRank { rank: dense_rank, score: similarity };
        // The walk restarts at the question and its entities, never at a chunk.
        let graph = GraphRank { rank, mass, reset: 0.0, via: Vec::new() };
        let path = HitPath { dense: Some(dense), graph: Some(graph), rerank, ..HitPath::default() };
        index.hit(number, rank, mass as f32, path)
    }

    fn shown(&self, graph: &Graph, query: &Query, masses: &NodeMasses) -> KagTrace {
        let options = query.kag;
        let found =
            |scored: &Scored| LinkedPhrase { phrase: graph.phrase(scored.number).to_owned(), similarity: scored.score };
        let entities = self.keys.iter().zip(&self.phrases).zip(&masses.entities).map(|((key, phrases), &mass)| {
            let name = key.name.clone();
            let given = key.given;
            KeyEntity { name, given, phrases: phrases.iter().map(found).collect(), mass }
        });
        let chunks = self.chunks.iter().enumerate().map(|(place, chunk)| KagChunk {
            passage: self.ids[place].clone(),
            title: self.titles[place].clone(),
            similarity: chunk.similarity,
            relevance: chunk.relevance,
            mass: masses.chunks[place],
        });
        let triples = self.facts.iter().enumerate().map(|(place, scored)| {
            let fact = graph.fact(scored.number);
            let relevance = scored.relevance;
            KagTriple {
                subject: graph.phrase(fact.subject).to_owned(),
                relation: fact.relation.to_owned(),
                object: graph.phrase(fact.object).to_owned(),
                similarity: scored.similarity,
                relevance: if relevance > options.threshold { relevance } else { 0.0 },
                chunks: self.sources[place].clone(),
                mass: masses.triples[place],
            }
        });
        KagTrace { options, entities: entities.collect(), chunks: chunks.collect(), triples: triples.collect() }
    }
}

#[cfg(test)]
mod tests;
