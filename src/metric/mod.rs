//! How good an answer is, and how well what was retrieved supports it.
//!
//! | file | what it holds |
//! |---|---|
//! | `normal` | the two ways in which answers are brought into a form that can be compared |
//! | `exact` | exact match and containment |
//! | `overlap` | F1 of words |
//! | `searcher` | the variants of R1-Searcher and GraphRAG-R1 |
//! | `support` | SF-F1 and UAR, after PathRouter |
//! | `cost` | what retrieval costs |
//! | `quantile` | quantiles of a sample |
//!
//! Scores are shares from 0 to 1, and the best of all golds where there are several.

mod cost;
mod exact;
mod normal;
mod overlap;
mod quantile;
pub mod searcher;
mod support;

pub use cost::{Cost, Prices, Searched};
pub use exact::{contains, exact_match};
pub use normal::{normalize, strip};
pub use overlap::{Overlap, f1};
pub use quantile::quantile;
pub use support::{Unsupported, support_f1};

#[cfg(test)]
mod golden;
