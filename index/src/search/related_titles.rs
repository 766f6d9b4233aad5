//! Passages about what a question asks of the entities that it names, for the walk of
//! [`GraphVariant::Waymark`](crate::GraphVariant).
//!
//! A walk spreads from a named entity over all of its facts alike. `Who is the child of the director of Devotion?` asks
//! for one of them: among the facts about Devotion, the one most similar to the question names the director, whose own
//! passage comes next.

use super::SearchContext;
use super::word_weights::title_forms;
use crate::dense::dot;
use crate::error::IndexError;
use crate::graph::Graph;
use crate::graph_ranking::named;
use crate::scored::Scored;

/// Maximum number of passages that name an entity whose facts are followed. An entity in more passages has too many
/// facts for the question to single one out. Chosen on the training questions of MuSiQue and 2WikiMultiHopQA, where 3
/// to 10 differ little.
const MOST_NAMING: usize = 8;

/// Maximum number of facts of an entity in which a title is searched, the most similar first.
const MOST_FACTS: usize = 16;

/// Maximum number of passages that name the other end of a fact. Their titles are compared with it; an end that more
/// passages name is skipped.
const MOST_SEARCHED: usize = 64;

impl SearchContext<'_> {
    /// Returns, for each named phrase, the passages whose title is the other end of one of its facts. Among the facts
    /// that lead to a title, takes the one most similar to the question. Omits phrases without such a fact.
    pub(super) fn related_titles(&self, graph: &Graph) -> Result<Vec<Vec<u32>>, IndexError> {
        let vector = self.vector()?;
        let named = named(self.text, |name| graph.phrase_id(name));
        let mut taken = named.clone();
        let mut related = Vec::new();
        for phrase in named {
            self.check("the related titles were searched")?;
            for fact in facts_about(graph, phrase, vector) {
                let fact = graph.fact(fact);
                let other = if fact.subject == phrase { fact.object } else { fact.subject };
                if taken.contains(&other) {
                    continue;
                }
                let passages = self.titled(graph, other)?;
                if !passages.is_empty() {
                    taken.push(other);
                    related.push(passages);
                    break;
                }
            }
        }
        Ok(related)
    }

    /// Passages that have a phrase as their title, if few passages name it.
    fn titled(&self, graph: &Graph, phrase: u32) -> Result<Vec<u32>, IndexError> {
        let naming = graph.passages_of(phrase);
        let mut titled = Vec::new();
        if naming.len() > MOST_SEARCHED {
            return Ok(titled);
        }
        for &passage in naming {
            let title = self.index.snapshot.store.name(passage)?.title;
            if title_forms(&title).iter().any(|form| form == graph.phrase(phrase)) {
                titled.push(passage);
            }
        }
        Ok(titled)
    }
}

/// Returns the facts with a phrase at one end that are most similar to the query, best first.
fn facts_about(graph: &Graph, phrase: u32, vector: &[f32]) -> Vec<u32> {
    let naming = graph.passages_of(phrase);
    if naming.len() > MOST_NAMING {
        return Vec::new();
    }
    let about = |fact: &u32| {
        let fact = graph.fact(*fact);
        fact.subject == phrase || fact.object == phrase
    };
    let mut facts: Vec<u32> =
        naming.iter().flat_map(|&passage| graph.facts_of(passage)).copied().filter(about).collect();
    facts.sort_unstable();
    facts.dedup();
    let scored = |fact: u32| Scored { number: fact, score: dot(vector, graph.fact_vector(fact)) };
    let best = graph.best_facts(facts.into_iter().map(scored).collect(), MOST_FACTS);
    best.into_iter().map(|scored| scored.number).collect()
}
