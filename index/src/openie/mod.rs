//! Sources of triples for documents that bring none: a built-in extractor, files of open information extraction made
//! elsewhere, and language models.

mod builtin;
mod endpoint;
mod filter;
mod import;
mod prompt;
mod records;
mod reply;

pub use builtin::Builtin;
pub use endpoint::{Endpoint, EndpointOptions, EndpointReport};
#[cfg(test)]
pub(crate) use filter::valid_triples;
pub use import::{ImportReport, Imported};
