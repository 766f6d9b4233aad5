//! `/v1/index`: routes for browsing the served index.
//!
//! | file | content |
//! |---|---|
//! | `summary` | `/v1/index`, name and size of the index |
//! | `questions` | `/v1/index/questions`, questions that the index answers |
//! | `nodes` | `/v1/index/nodes`, phrases and passages found by text |
//! | `neighbors` | `/v1/index/neighbors`, the heaviest edges of a node |
//! | `passages` | `/v1/index/passages/{id}`, a passage with its triples |
//! | `node` | nodes on the wire |
//! | `params` | query parameters |

pub mod neighbors;
pub mod node;
pub mod nodes;
mod params;
pub mod passages;
pub mod questions;
pub mod summary;

use super::documents::broken;

/// Size in bytes after which a response takes no further entries. Phrases and triples may be texts of any length.
const RESPONSE_BYTES: usize = 1 << 20;
