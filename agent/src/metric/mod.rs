//! Scores of answers, and of the evidence that supports them.
//!
//! | module | content |
//! |---|---|
//! | `normalize` | the normal forms in which answers are compared |
//! | `exact` | exact match and containment |
//! | `overlap` | F1 of words |
//! | `r1_searcher` | the variants of R1-Searcher and GraphRAG-R1 |
//! | `support` | SF-F1 and UAR, after PathRouter |
//! | `cost` | costs of retrieval |
//! | `abstention` | answers that state that nothing was found |
//! | `quantile` | quantiles of a sample |
//!
//! Scores are between 0 and 1. With several gold answers, the best score counts.

mod abstention;
mod cost;
mod exact;
mod normalize;
mod overlap;
mod quantile;
pub mod r1_searcher;
mod support;

pub use abstention::{Abstention, declines};
pub use cost::{Cost, PricedSearch, Prices};
pub use exact::{contains, exact_match};
pub use normalize::{normalize, strip};
pub use overlap::{Overlap, f1};
pub use quantile::quantile;
pub use support::{Unsupported, support_f1};

#[cfg(test)]
mod golden;
