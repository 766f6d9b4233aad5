//! From facts to passages: where a walk over the graph starts, where it arrives, and by which way.

mod ground;
mod local;
mod reset;
mod trace;

pub(crate) use ground::{Arrived, Ground, OwnWeights};
#[cfg(test)]
pub(crate) use reset::Seed;
pub(crate) use reset::{Kept, seeds};
pub(crate) use trace::Tracer;
