//! Policy of the demo, trained by this project and embedded in the program.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use waymark_agent::family_members;
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
    // The name carries a checksum, so a program with another policy writes another folder. The folder is written
    // whole or not at all, so an existing one needs no check.
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

/// Returns the folders in `dir` that hold a policy or a family of policies, sorted by name.
///
/// # Errors
/// If `dir` cannot be read or has none.
pub(super) fn folders(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| {
        format!(
            "cannot read the policies in {}: --all-policies takes the folder models/policies of the source code",
            dir.display()
        )
    })?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", dir.display()))?.path();
        if path.join("policy.toml").is_file() || !family_members(&path).is_empty() {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "{}: no folder in it holds a policy", dir.display());
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use waymark_agent::Policy;

    #[test]
    fn all_policies_of_a_folder_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let message = folders(dir.path()).unwrap_err().to_string();
        assert!(message.contains("no folder in it holds a policy"), "{message}");
        assert!(folders(&dir.path().join("none")).unwrap_err().to_string().contains("--all-policies"));
        for place in ["b/stage1", "a", "empty"] {
            fs::create_dir_all(dir.path().join(place)).unwrap();
        }
        for place in ["b/stage1", "a"] {
            fs::write(dir.path().join(place).join("policy.toml"), "protocol = \"plain\"\n").unwrap();
        }
        assert_eq!(folders(dir.path()).unwrap(), [dir.path().join("a"), dir.path().join("b")]);
    }

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
