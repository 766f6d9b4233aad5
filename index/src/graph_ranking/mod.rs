//! Ranks passages by personalized PageRank over the graph: seed phrases, the walk, and the likeliest path to each
//! passage.

mod local;
mod named_phrases;
mod path_tracer;
mod ranker;
mod seeds;

pub(crate) use named_phrases::{add_named, named};
pub(crate) use path_tracer::PathTracer;
pub(crate) use ranker::{GraphRanker, PassageWeights, RankedPassages};
pub(crate) use seeds::{KeptFact, Seed, seeds};
