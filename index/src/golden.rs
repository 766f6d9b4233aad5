//! Golden vectors of the reference systems, for the tests of the modules that have to reproduce them.

#![allow(clippy::print_stderr)]

use serde_json::Value;

/// One section of a file of golden vectors; `None`, with a line that says so, where the vectors are not there.
pub(crate) fn golden(file: &str, section: &str) -> Option<Value> {
    let folder = std::env::var("WAYMARK_GOLDEN")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/golden").to_owned());
    let path = std::path::Path::new(&folder).join(file);
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    };
    let sections: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(sections.get(section).unwrap_or_else(|| panic!("{} has no section {section}", path.display())).clone())
}
