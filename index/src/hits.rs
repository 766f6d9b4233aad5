//! Builds the results of a search, passages and triples, from the snapshot.

use crate::condition::{AllowedPassages, admits};
use crate::corpus::content;
use crate::error::IndexError;
use crate::evidence::{Hit, HitPath, Passage, TripleHit};
use crate::graph::Graph;
use crate::graph::phrase::normalize;
use crate::index::Index;
use crate::triple::Triple;

/// Maximum number of passages named with a triple.
const MOST_PASSAGES: usize = 10;

/// Iterates over the allowed passages that state a fact, in corpus order.
pub(crate) fn passages_stating(
    graph: &Graph,
    fact: u32,
    allowed: Option<&AllowedPassages>,
) -> impl Iterator<Item = u32> {
    graph.passages_of_fact(fact).iter().copied().filter(move |&number| admits(allowed, number))
}

/// Rewrites a fact in the words of the first allowed passage that states it (TeaRAG, Table 11). The normal form
/// identifies the fact, but a policy cannot copy an answer from it: it lacks capitals, punctuation and non-ASCII
/// letters.
pub(crate) fn worded(
    graph: &Graph,
    fact: u32,
    hit: TripleHit,
    allowed: Option<&AllowedPassages>,
) -> Result<TripleHit, IndexError> {
    let Some(passage) = passages_stating(graph, fact, allowed).next() else { return Ok(hit) };
    let says = |triple: &Triple| {
        normalize(&triple.subject) == hit.subject
            && normalize(&triple.relation) == hit.relation
            && normalize(&triple.object) == hit.object
    };
    let said = graph.triples(passage)?.into_iter().find(says);
    Ok(match said {
        Some(Triple { subject, relation, object }) => TripleHit { subject, relation, object, ..hit },
        None => hit,
    })
}

impl Index {
    /// Reads the passage with this number, and combines it with its rank and score.
    pub(crate) fn hit(&self, number: u32, rank: usize, score: f32, path: HitPath) -> Result<Hit, IndexError> {
        let store = &self.snapshot.store;
        Ok(Hit { rank, score, passage: store.passage(number)?, metadata: store.metadata(number)?, path })
    }

    /// Reads the text of a passage as it was embedded, without the prompt.
    pub(crate) fn text(&self, number: u32) -> Result<String, IndexError> {
        let Passage { title, text, .. } = self.snapshot.store.passage(number)?;
        Ok(content(&title, &text))
    }

    /// Converts a fact to a result that names the first allowed passages stating it.
    pub(crate) fn triple_hit(
        &self,
        graph: &Graph,
        fact: u32,
        rank: usize,
        score: f32,
        allowed: Option<&AllowedPassages>,
    ) -> Result<TripleHit, IndexError> {
        let passages = passages_stating(graph, fact, allowed).take(MOST_PASSAGES);
        let passages = passages.map(|number| Ok(self.snapshot.store.name(number)?.id));
        let fact = graph.fact(fact);
        Ok(TripleHit {
            rank,
            score,
            subject: graph.phrase(fact.subject).to_owned(),
            relation: fact.relation.to_owned(),
            object: graph.phrase(fact.object).to_owned(),
            passages: passages.collect::<Result<_, IndexError>>()?,
        })
    }
}
