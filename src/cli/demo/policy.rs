//! Policy of the demo, trained by this project and embedded in the program.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use waymark_models::folder::FolderDraft;

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../models/policies/routerag-smollm2-135m/stage1/", $name)))
    };
}

/// Files of the policy: a PEFT adapter and its `policy.toml`.
const FILES: [(&str, &[u8]); 3] =
    [file!("policy.toml"), file!("adapter_config.json"), file!("adapter_model.safetensors")];

/// Returns the directory of the policy below `cache`; writes its files if they are missing.
///
/// # Errors
/// If the folder cannot be written.
pub(super) fn unpack(cache: &Path) -> anyhow::Result<PathBuf> {
    let mut contents = blake3::Hasher::new();
    for (name, bytes) in FILES {
        contents.update(name.as_bytes()).update(bytes);
    }
    // The name carries a checksum, so that a program with another policy writes another folder. It is written whole or
    // not at all: a folder of this name needs no further look.
    let dir = cache.join(format!("demo-policy-{}", &contents.finalize().to_hex()[..12]));
    if dir.is_dir() {
        return Ok(dir);
    }
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let draft = FolderDraft::begin(&dir)?;
    for (name, bytes) in FILES {
        let path = draft.part().join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    draft.finish()?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use waymark_agent::Policy;

    #[test]
    fn the_policy_in_the_program_is_unpacked_once() {
        let cache = tempfile::tempdir().unwrap();
        let dir = unpack(&cache.path().join("new")).unwrap();
        let policy = Policy::open(&dir).unwrap();
        assert_eq!(policy.base.as_deref(), Some(waymark_runtime::config::DEFAULT_MODEL));
        assert_eq!(policy.adapter_dir.as_deref(), Some(dir.as_path()));
        assert_eq!(
            policy.retrieval.search.ranking,
            Some(waymark_index::Ranking::Fused),
            "it searches as it was taught to"
        );
        let written = fs::metadata(dir.join("policy.toml")).unwrap().modified().unwrap();
        assert_eq!(unpack(&cache.path().join("new")).unwrap(), dir);
        assert_eq!(fs::metadata(dir.join("policy.toml")).unwrap().modified().unwrap(), written);
    }
}
