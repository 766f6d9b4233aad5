//! Vectors that were made by executing the reference programs: `WAYMARK_GOLDEN` names their directory; without it they are
//! looked for beside the workspace.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// The file `name`, or nothing and a line that says so where it is not there.
pub(crate) fn read<T: DeserializeOwned>(name: &str) -> Option<T> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/golden");
    let dir = std::env::var_os("WAYMARK_GOLDEN").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let path = dir.join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} is not there", path.display());
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}
