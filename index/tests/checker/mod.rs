//! Checks evidence against its index by recomputing every number from the stored data, in double precision and in the
//! plainest way, without any code of the search itself.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

mod facts;
mod names;
mod numbers;
mod ranking;
mod ways;
mod words;

use waymark_index::{Embed, Evidence, GraphVariant, Index, Mode, Query};

pub use numbers::{dot, min_max, unit};

/// Result of a check, with a description of the mistake.
pub type Wrong = Result<(), String>;

/// Fails a check with a description unless a condition holds.
macro_rules! hold {
    ($condition:expr, $($words:tt)*) => {
        if $condition {
        } else {
            return Err(format!($($words)*));
        }
    };
}
pub(crate) use hold;

/// Inputs of a search, recomputed.
pub struct Seen<'a> {
    pub index: &'a Index,
    pub query: &'a Query,
    /// Vector of the query, of length 1.
    pub vector: Vec<f64>,
    /// Similarity of every passage to the query.
    pub similarity: Vec<f64>,
    /// `similarity` scaled to [0, 1].
    pub scaled: Vec<f64>,
    /// Weight of every passage in the reset vector.
    pub own: Vec<f64>,
    /// Number of passages.
    pub passages: usize,
}

/// Checks evidence of a graph search over the whole graph with dense ranking, made without a filter or with one whose
/// choice is in the trace.
pub fn check(index: &Index, embed: &dyn Embed, query: &Query, evidence: &Evidence) -> Wrong {
    hold!(evidence.snapshot == index.manifest().snapshot, "another snapshot");
    hold!(evidence.mode == query.mode, "another mode");
    let graph = index.graph().ok_or("no graph")?;
    let vector = unit(&embed.embed(&[query.text.trim()]).unwrap()[0]);
    let passages = graph.passages();
    let similarity: Vec<f64> = (0..passages as u32).map(|number| dot(&vector, index.vector(number).unwrap())).collect();
    let scaled = min_max(&similarity);
    let weight = query.graph.passage_weight;
    let own = scaled.iter().map(|scaled| weight * scaled).collect();
    let mut seen = Seen { index, query, vector, similarity, scaled, own, passages };
    if query.graph.variant == GraphVariant::Waymark {
        seen.own = words::own(&seen, weight)?;
    }
    let seen = seen;
    let walk = evidence.walk.as_ref().ok_or("no walk")?;
    hold!(walk.variant == query.graph.variant, "another variant");
    hold!(walk.damping == query.graph.damping, "another damping");
    hold!(walk.passage_weight == query.graph.passage_weight, "another weight of passages");
    hold!(!walk.local, "a local walk, which cannot be computed again");
    hold!(walk.missing <= if walk.fallback { 0.0 } else { 1e-5 }, "{} is missing", walk.missing);
    let scores = facts::check(&seen, walk)?;
    facts::check_seeds(&seen, walk, &scores)?;
    for (hit, rank) in evidence.hits.iter().zip(1..) {
        hold!(hit.rank == rank, "hit {rank} has rank {}", hit.rank);
        let stored = index.passage(&hit.passage.id).unwrap().ok_or("a passage that is not stored")?;
        hold!((&stored.title, &stored.text) == (&hit.passage.title, &hit.passage.text), "another text");
    }
    ranking::check(&seen, evidence, walk)?;
    if query.mode == Mode::Triples {
        facts::check_triples(&seen, evidence, walk)?;
    } else {
        hold!(evidence.triples.is_empty(), "triples that were not asked for");
    }
    Ok(())
}
