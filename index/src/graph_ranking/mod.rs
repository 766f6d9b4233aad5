//! From facts to passages: where a walk over the graph starts, where it arrives, and by which way.

mod local;
mod path_tracer;
mod ranker;
mod seeds;

pub(crate) use path_tracer::PathTracer;
pub(crate) use ranker::{GraphRanker, PassageWeights, RankedPassages};
#[cfg(test)]
pub(crate) use seeds::Seed;
pub(crate) use seeds::{KeptFact, seeds};
