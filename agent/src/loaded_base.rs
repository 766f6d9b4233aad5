//! Identity of the loaded base model, and the check that a policy belongs to it.

use std::path::PathBuf;

use super::policy::Policy;

/// Files and size of loaded weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsSummary {
    /// Names of the files.
    pub files: Vec<String>,
    /// Number of parameters.
    pub parameters: u64,
}

/// Identity of the loaded base model: everything by which a policy may name its base.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedBase {
    /// Names of the model.
    pub names: Vec<String>,
    /// Content hash of its weights ([`Weights::id`](waymark_models::weights::Weights::id)). `None` for a mock.
    pub id: Option<String>,
    /// Directory or file of its weights: an absolute path without symbolic links. `None` for a mock.
    pub path: Option<PathBuf>,
    /// Files and size of its weights. `None` for a mock.
    pub weights: Option<WeightsSummary>,
}

impl LoadedBase {
    /// Returns the reason why `policy` does not belong to this model, if it does not. The weights' ID takes precedence
    /// over their path, and the path over a name, which other models may have as well.
    pub(super) fn mismatch(&self, policy: &Policy) -> Option<String> {
        let name = &policy.name;
        let loaded = self.names.join(" alias ");
        let brought = policy.model_dir();
        let remedy =
            brought.as_ref().map_or_else(|| "set --model".to_owned(), |dir| format!("set --model {}", dir.display()));
        if let (Some(wanted), Some(id)) = (&policy.base_id, &self.id) {
            let named = policy.base.as_ref().map_or_else(String::new, |base| format!(" {base}"));
            return (wanted != id).then(|| {
                format!(
                    "the policy {name} belongs to the base model{named} with the id {wanted}, but {loaded} with the id {id} is \
                     loaded: {remedy}, or take base_id out of the file to go by the name"
                )
            });
        }
        if let Some(dir) = brought {
            let own = dir.canonicalize().ok();
            let same = own.zip(self.path.as_ref()).is_some_and(|(own, path)| path.starts_with(own));
            let own = dir.display();
            return (!same)
                .then(|| format!("the policy {name} belongs to the model in {own}, but {loaded} is loaded: {remedy}"));
        }
        // A path that does not exist matches no model, not even a mock, whose path is `None`.
        let path = |named: &String| policy.dir.as_ref()?.join(named).canonicalize().ok();
        let here = |named: &String| path(named).is_some_and(|path| self.path.as_ref() == Some(&path));
        let named = policy.base.as_ref().filter(|named| !self.names.contains(named) && !here(named))?;
        Some(format!("the policy {name} belongs to the base model {named}, but {loaded} is loaded: {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Creates a policy in `dir` whose file contains `more`.
    fn policy(dir: &Path, more: &str) -> Policy {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("policy.toml"), format!("name = \"p\"\nprotocol = \"plain\"\n{more}\n")).unwrap();
        Policy::open(dir).unwrap()
    }

    #[test]
    fn weights_count_before_their_place_and_that_before_a_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let own = root.join("own/model");
        fs::create_dir_all(&own).unwrap();
        let base = |path: &Path| LoadedBase {
            names: vec!["spec".to_owned(), "model".to_owned()],
            id: Some("00ff".to_owned()),
            path: Some(path.to_owned()),
            weights: None,
        };
        let here = base(&own);
        let elsewhere = base(&root.join("elsewhere/model"));
        let fits = |more: &str, base: &LoadedBase| base.mismatch(&policy(&root.join("bare"), more)).is_none();
        assert!(fits("", &here) && fits("base = \"spec\"", &here) && !fits("base = \"other\"", &here));
        assert!(fits("base = \"other\"\nbase_id = \"00ff\"", &here));
        assert!(!fits("base = \"spec\"\nbase_id = \"ff00\"", &here) && !fits("base_id = \"ff00\"", &here));
        // The policy's directory contains no `model`, so this base is a name.
        assert!(fits("base = \"model\"", &elsewhere));
        let mock = LoadedBase { names: vec!["mock".to_owned()], ..LoadedBase::default() };
        assert!(fits("base = \"mock\"\nbase_id = \"00ff\"", &mock), "what has no weights goes by its name");

        let brings = |more: &str| policy(&root.join("own"), &format!("base = \"model\"\n{more}"));
        let whole = brings("");
        assert_eq!(whole.model_dir().unwrap(), own);
        assert_eq!(here.mismatch(&whole), None);
        assert_eq!(base(&own.join("model.safetensors")).mismatch(&whole), None, "its file is as good");
        for other in [&elsewhere, &mock] {
            let flaw = other.mismatch(&whole).unwrap();
            assert!(flaw.contains(&format!("set --model {}", own.display())), "{flaw}");
        }
        assert_eq!(elsewhere.mismatch(&brings("base_id = \"00ff\"")), None, "the same weights, moved");
        assert!(
            here.mismatch(&brings("base_id = \"ff00\"")).unwrap().contains("base_id"),
            "other weights in its place"
        );
    }
}
