//! From facts to passages: where a walk over the graph starts, where it arrives, and by which way.

mod ground;
mod local;
mod reset;
mod trace;

pub(crate) use ground::{Ground, OwnWeights};
pub(crate) use reset::{Kept, Seed, seeds};
pub(crate) use trace::Tracer;
