//! Default weights for tests of any crate in the workspace: `#[path = "…/models/tests/pulled/mod.rs"] mod pulled;`.
//!
//! The weights are pulled once into `$WAYMARK_CACHE`, or into `target/waymark-cache` of the workspace.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

use waymark_models::pull::{self, PullError};

/// Names of the weights in the catalog.
const POLICY: &str = "smollm2-135m-instruct";
const EMBEDDER: &str = "all-minilm-l6-v2";

/// Directory of pulled weights.
pub fn cache() -> PathBuf {
    if let Some(cache) = std::env::var_os("WAYMARK_CACHE") {
        return PathBuf::from(cache);
    }
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = folders.find(|folder| folder.join("Cargo.lock").is_file()).expect("a workspace has a Cargo.lock");
    root.join("target/waymark-cache")
}

/// GGUF file of the default base model.
pub fn policy() -> PathBuf {
    pull::pull(POLICY, &cache(), &()).unwrap()
}

/// GGUF file of the default base model. `None`, after printing one line, if no source is reachable.
pub fn policy_if_reachable() -> Option<PathBuf> {
    match pull::pull(POLICY, &cache(), &()) {
        Err(PullError::Sources { name, attempts }) if attempts.iter().all(unreachable) => {
            println!("skipped: {name} is not in the cache, and no source can be reached");
            None
        }
        pulled => Some(pulled.unwrap()),
    }
}

fn unreachable(error: &PullError) -> bool {
    matches!(error, PullError::Package { .. } | PullError::Hub { .. })
}

/// Directory of the default embedder.
pub fn embedder() -> PathBuf {
    pull::pull(EMBEDDER, &cache(), &()).unwrap()
}
