//! Changes since the base snapshot: a log of records on disk, and overlays over the mapped files in memory.
//!
//! A commit appends one record and publishes it through the manifest. Searches over the base snapshot and the overlays
//! return the same results as an index built from scratch. A merge writes a new base snapshot and starts a new log.

mod documents;
mod layered;
pub(crate) mod log;
mod paged;
mod record;
mod shared_list;

pub(crate) use documents::{DocumentDelta, TouchedNumbers};
pub(crate) use layered::{Layered, LayeredNumbers};
pub(crate) use paged::PagedMap;
pub(crate) use record::{DeltaRecord, RecordDocument};
pub(crate) use shared_list::SharedList;
