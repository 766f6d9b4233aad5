//! Policy for a checkpoint that was trained in a protocol and has no policy file.

use std::path::Path;

use anyhow::Context;
use waymark_agent::{LoadedBase, Policy, Sampling};
use waymark_models::layout::GenerationDefaults;

/// Returns a policy that runs `protocol` on the loaded weights under the name of their file or directory: unguided,
/// because they were trained in it, and with the sampling parameters that the checkpoint recommends.
///
/// # Errors
/// If there is no such protocol.
pub fn trained_policy(protocol: &str, base: &LoadedBase) -> anyhow::Result<Policy> {
    let known = Policy::BUILTIN.join(", ");
    let policy =
        Policy::builtin(protocol).with_context(|| format!("unknown protocol {protocol:?}: expected one of {known}"))?;
    let defaults = base.path.as_deref().map(recommended).unwrap_or_default();
    let name = base.names.first().map_or_else(|| protocol.to_owned(), |spec| name(spec));
    Ok(Policy { name, guided: false, sampling: defaults.or(&policy.sampling), ..policy })
}

/// Returns the name for weights that `spec` named: the last part of a path or of a hub ID, without a file after `:` and
/// without the extension `.gguf` or `.safetensors`.
fn name(spec: &str) -> String {
    let last = spec.trim_end_matches('/').rsplit('/').next().unwrap_or(spec);
    let last = last.split_once(':').map_or(last, |(name, _)| name);
    last.strip_suffix(".gguf").or(last.strip_suffix(".safetensors")).unwrap_or(last).to_owned()
}

fn recommended(path: &Path) -> Sampling {
    let dir = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let defaults = GenerationDefaults::read(dir);
    let greedy = defaults.do_sample == Some(false);
    Sampling {
        temperature: if greedy { Some(0.0) } else { defaults.temperature },
        top_p: defaults.top_p.filter(|_| !greedy),
        top_k: defaults.top_k.filter(|_| !greedy),
        min_p: defaults.min_p.filter(|_| !greedy),
        repetition_penalty: defaults.repetition_penalty,
        ..Sampling::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(path: Option<&Path>, spec: &str) -> Policy {
        let base = LoadedBase { names: vec![spec.to_owned()], path: path.map(Path::to_owned), ..LoadedBase::default() };
        trained_policy("search-r1", &base).unwrap()
    }

    #[test]
    fn it_has_the_name_of_its_weights_and_is_not_guided() {
        for (spec, name) in [
            ("org/Search-R1-3B", "Search-R1-3B"),
            ("/weights/mine/", "mine"),
            ("/weights/mine.gguf", "mine"),
            ("org/name:file.gguf", "name"),
        ] {
            let policy = of(None, spec);
            assert_eq!((policy.name.as_str(), policy.guided, policy.protocol.name()), (name, false, "search-r1"));
            assert_eq!(policy.sampling, Policy::builtin("search-r1").unwrap().sampling);
        }
        let unknown = trained_policy("search-r2", &LoadedBase::default()).unwrap_err().to_string();
        assert!(unknown.contains("search-r2") && unknown.contains("search-r1"), "{unknown}");
    }

    #[test]
    fn it_samples_as_the_checkpoint_recommends() {
        let dir = tempfile::tempdir().unwrap();
        let write = |json: &str| std::fs::write(dir.path().join("generation_config.json"), json).unwrap();
        write(r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}"#);
        let sampling = of(Some(dir.path()), "x").sampling;
        assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (Some(0.7), Some(0.8), Some(20)));
        assert_eq!(sampling.repetition_penalty, Some(1.05));
        write(r#"{"do_sample": false, "temperature": 0.7}"#);
        assert_eq!(of(Some(dir.path()), "x").sampling.temperature, Some(0.0));
    }

    #[test]
    fn recommended_values_that_no_request_may_have_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let json = r#"{"temperature": 0.7, "top_p": 0, "top_k": -1, "repetition_penalty": 0}"#;
        std::fs::write(dir.path().join("generation_config.json"), json).unwrap();
        let usual = of(None, "x").sampling;
        assert_eq!(of(Some(dir.path()), "x").sampling, Sampling { temperature: Some(0.7), ..usual });
    }
}
