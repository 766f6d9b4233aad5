//! Where triples come from when the corpus brings none: files of open information extraction that were made
//! elsewhere.

mod builtin;
mod filter;
mod import;
mod records;

pub use builtin::Builtin;
#[cfg(test)]
pub(crate) use filter::valid_triples;
pub use import::{ImportReport, Imported};
