//! Where triples come from when the corpus brings none: files of open information extraction that were made
//! elsewhere.

mod filter;
mod import;
mod records;

pub use import::{ImportReport, Imported};
