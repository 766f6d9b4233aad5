//! Where triples come from when the corpus brings none: files of open information extraction that were made
//! elsewhere.

mod filter;
mod import;
mod records;

#[cfg(test)]
pub(crate) use filter::valid_triples;
pub use import::{ImportReport, Imported};
