//! Choice of the base model.

use std::path::{Path, PathBuf};

use waymark_agent::Policy;
use waymark_models::catalog::{Catalog, DownloadSource};
use waymark_models::layout::adapter_base;

use super::ConfigError;

/// Base model that is served if neither a model nor a policy is given: a name in the catalog.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// Returns the base model to load: `named`, or the one that the policy in the directory `first` brings or names.
/// Without a policy it is [`DEFAULT_MODEL`].
///
/// # Errors
/// If the policy cannot be read, or no base model can be found for it. No other model takes its place.
pub fn base_model(named: Option<String>, first: Option<&Path>) -> Result<String, ConfigError> {
    match (named, first) {
        (Some(named), _) => Ok(named),
        (None, Some(dir)) => of_policy(&Policy::open(dir)?),
        (None, None) => Ok(DEFAULT_MODEL.to_owned()),
    }
}

fn of_policy(policy: &Policy) -> Result<String, ConfigError> {
    // A policy that brings weights needs no other model.
    if let Some(dir) = policy.model_dir() {
        return Ok(text(&dir));
    }
    let catalog = Catalog::bundled();
    if let Some(base) = &policy.base {
        return known(base, policy, &catalog).ok_or_else(|| not_found(policy, base));
    }
    let base = policy.adapter_dir.as_deref().and_then(adapter_base);
    let base = base.ok_or_else(|| ConfigError::NoBase { policy: policy.name.clone() })?;
    // The catalog's copy of a repository has checksums and needs no access to the hub.
    let copy = catalog.entries.iter().find(|entry| entry.sources.iter().any(|source| is_repository(source, &base)));
    match copy {
        Some(entry) => Ok(entry.name.clone()),
        None => known(&base, policy, &catalog).ok_or_else(|| not_found(policy, &base)),
    }
}

/// Returns the value of `--model` for a base model that a policy names: a name in the catalog, a path relative to the
/// policy's directory or to the working directory, or a hub ID.
fn known(base: &str, policy: &Policy, catalog: &Catalog) -> Option<String> {
    if catalog.get(base).is_some() {
        return Some(base.to_owned());
    }
    let beside = policy.dir.as_ref().map(|dir| dir.join(base));
    let paths = [beside, Some(PathBuf::from(base))];
    // The policy's directory comes first, so that a policy and its model can be moved together.
    let found = paths.into_iter().flatten().find(|path| path.exists());
    found.map(|path| text(&path)).or_else(|| is_hub_id(base).then(|| base.to_owned()))
}

fn is_repository(source: &DownloadSource, id: &str) -> bool {
    matches!(source, DownloadSource::Hub { hub, folder, .. } if hub == id && folder.is_empty())
}

/// Returns `true` for `org/name`.
fn is_hub_id(text: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains([' ', '\\']);
    text.split_once('/').is_some_and(|(org, name)| part(org) && part(name) && !name.contains('/'))
}

fn not_found(policy: &Policy, base: &str) -> ConfigError {
    ConfigError::BaseNotFound { policy: policy.name.clone(), base: base.to_owned() }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_models::catalog::WeightsKind;

    use super::super::embedder::DEFAULT_EMBEDDER;
    use super::*;

    /// Directory of a policy whose file contains `more`.
    fn policy(more: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("policy.toml"), format!("name = \"a\"\nprotocol = \"plain\"\n{more}\n"))
            .unwrap();
        dir
    }

    fn chosen(dir: &tempfile::TempDir) -> Result<String, String> {
        base_model(None, Some(dir.path())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_catalog_has_the_defaults() {
        let catalog = Catalog::bundled();
        assert_eq!(catalog.get(DEFAULT_MODEL).unwrap().kind, WeightsKind::Policy);
        assert_eq!(catalog.get(DEFAULT_EMBEDDER).unwrap().kind, WeightsKind::Embedder);
    }

    #[test]
    fn a_policy_is_never_served_with_a_model_that_it_does_not_name() {
        assert_eq!(base_model(None, None).unwrap(), DEFAULT_MODEL);
        for (more, words) in [
            ("", "names no base model"),
            ("base = \"model\"", "\"model\""),
            ("base = \"qwen-of-mine\"", "\"qwen-of-mine\""),
            ("base = 3", "base"),
        ] {
            let dir = policy(more);
            let refused = chosen(&dir).unwrap_err();
            assert!(refused.contains(words), "{more}: {refused}");
            // Loading then compares the policy with the model that was named.
            assert_eq!(base_model(Some("x".to_owned()), Some(dir.path())).unwrap(), "x");
        }
        assert!(
            base_model(None, Some(Path::new("no/such/policy"))).unwrap_err().to_string().contains("no/such/policy")
        );
    }

    #[test]
    fn what_it_names_is_found() {
        assert_eq!(chosen(&policy(&format!("base = {DEFAULT_MODEL:?}"))).unwrap(), DEFAULT_MODEL);
        assert_eq!(chosen(&policy("base = \"org/name\"")).unwrap(), "org/name");
        let beside = policy("base = \"weights\"");
        std::fs::create_dir(beside.path().join("weights")).unwrap();
        assert_eq!(chosen(&beside).unwrap(), beside.path().join("weights").to_string_lossy());
        let whole = policy("");
        std::fs::write(whole.path().join("config.json"), "{}").unwrap();
        std::fs::write(whole.path().join("model.safetensors"), "").unwrap();
        assert_eq!(chosen(&whole).unwrap(), whole.path().to_string_lossy());
    }

    #[test]
    fn an_adapter_names_its_base() {
        let adapter = |base: &str| {
            let dir = policy("");
            let config = format!("{{\"base_model_name_or_path\": {base:?}}}");
            std::fs::write(dir.path().join("adapter_config.json"), config).unwrap();
            dir
        };
        assert_eq!(chosen(&adapter("org/name")).unwrap(), "org/name");
        assert!(chosen(&adapter("/no/such/place")).unwrap_err().contains("/no/such/place"));
    }
}
