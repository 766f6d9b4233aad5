//! Hybrid search, RouteRAG's `[graph][passage]`: the graph's list fused with the passage list.

use std::collections::HashMap;

use super::SearchContext;
use crate::error::IndexError;
use crate::evidence::Evidence;
use crate::fusion::{RRF_K, RankedList, depth, reciprocal_rank};
use crate::graph::Graph;

impl SearchContext<'_> {
    /// Runs `RouteRAG.search` (RouteRAG §3.1.2): reciprocal rank fusion of two lists, each twice as deep as the result.
    /// RouteRAG leaves the order of ties open; here the graph's list comes first.
    pub(super) fn by_both(&self, graph: &Graph) -> Result<Evidence, IndexError> {
        let depth = depth(self.candidates());
        let found = self.search_graph(graph, depth, self.query.graph.linking_top_k)?;
        let passages = self.passages(depth)?;
        self.check("the passages were read")?;
        let first: Vec<u32> = found.list.iter().map(|reached| reached.number).collect();
        let second: Vec<u32> = passages.ranked.iter().map(|(number, _)| *number).collect();
        let places: HashMap<u32, usize> = first.iter().zip(0..).map(|(&number, place)| (number, place)).collect();
        let fused = reciprocal_rank(&[RankedList::new(&first), RankedList::new(&second)], RRF_K);
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
        Ok(Evidence { walk: Some(found.walk), ..self.evidence(hits, &budget) })
    }
}
