//! Hybrid search, RouteRAG's `[graph][passage]`: the graph's list fused with the passage list.

use std::collections::HashMap;

use super::SearchContext;
use crate::error::IndexError;
use crate::evidence::Evidence;
use crate::fusion::{RRF_K, RankedList, depth, reciprocal_rank};
use crate::graph::Graph;
use crate::mode::GraphVariant;

/// Constant of the fusion and weight of the passage list in [`GraphVariant::Waymark`]. Chosen on the training questions
/// of MuSiQue and 2WikiMultiHopQA, on which the fused list loses to neither list at any cutoff.
const OWN_FUSION: (f64, f64) = (0.0, 0.05);

impl SearchContext<'_> {
    /// Runs `RouteRAG.search` (RouteRAG §3.1.2): reciprocal rank fusion of two lists, each twice as deep as the result.
    /// RouteRAG leaves the order of ties open; here the graph's list comes first. With the variant
    /// [`GraphVariant::Waymark`], the lists have different weights.
    pub(super) fn by_hybrid(&self, graph: &Graph) -> Result<Evidence, IndexError> {
        let depth = depth(self.candidates());
        let found = self.search_graph(graph, depth, self.query.graph.linking_top_k)?;
        let passages = self.passages(depth)?;
        self.check("the passages were read")?;
        let first: Vec<u32> = found.list.iter().map(|reached| reached.number).collect();
        let second: Vec<u32> = passages.ranked.iter().map(|(number, _)| *number).collect();
        let places: HashMap<u32, usize> = first.iter().zip(0..).map(|(&number, place)| (number, place)).collect();
        let is_own = self.query.graph.variant == GraphVariant::Waymark;
        let (constant, weight) = if is_own { OWN_FUSION } else { (RRF_K, 1.0) };
        let fused = reciprocal_rank(&[RankedList::new(&first), RankedList { items: &second, weight }], constant);
        let mut budget = self.budget();
        let fused: Vec<(u32, f32)> =
            fused.into_iter().take(self.candidates()).map(|(number, score)| (number, score as f32)).collect();
        let path = |_, number: u32| {
            let mut path = passages.path(number);
            if let Some(&place) = places.get(&number) {
                found.show(place, &mut path);
            }
            path
        };
        let hits = self.ranked_hits(&fused, path, &mut budget)?;
        Ok(Evidence { walk: Some(found.trace), ..self.evidence(hits, &budget) })
    }
}
