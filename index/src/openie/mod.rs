//! Where triples come from when the corpus brings none: files of open information extraction that were made
//! elsewhere, and language models.

mod endpoint;
mod filter;
mod import;
mod prompt;
mod records;
mod reply;

pub use endpoint::{Endpoint, EndpointOptions, EndpointReport};
pub use import::{ImportReport, Imported};
