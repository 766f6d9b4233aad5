//! Selection of the base model of a policy.

use std::fs;
use std::path::Path;

use serde_json::json;
use waymark_models::decoder::{DecoderConfig, RopeScaling};
use waymark_models::weights::{Weights, write_random};

use super::program::{ProgramRun, waymark};
use super::pulled;

/// Writes a model with random weights and a small vocabulary into the new folder `dir`.
fn model(dir: &Path, seed: u64) {
    let config = DecoderConfig {
        vocab: 48,
        hidden: 64,
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        context: 256,
        rope_base: 1e4,
        rope_scaling: RopeScaling::None,
        rms_eps: 1e-5,
        tied_embeddings: true,
        qkv_bias: false,
        qk_norm: false,
    };
    fs::create_dir_all(dir).unwrap();
    write_random(dir, &config, seed).unwrap();
    let vocab: serde_json::Map<_, _> = (0..config.vocab).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    });
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// Writes a policy with the base model `base` into the folder `name` of `root`. Returns its directory.
fn policy(root: &Path, name: &str, base: &str) -> String {
    let dir = root.join(name);
    fs::create_dir_all(&dir).unwrap();
    let budget = "[budget]\nturn_tokens = 4\nsampled_tokens = 4\n";
    fs::write(dir.join("policy.toml"), format!("name = \"{name}\"\nprotocol = \"plain\"\n{base}\n{budget}")).unwrap();
    dir.to_str().unwrap().to_owned()
}

/// Asks the policy in `dir`, over the base model that `flags` name.
fn ask(dir: &str, flags: &[&str]) -> ProgramRun {
    let small = ["--embedder", "mock", "--threads", "1", "--kv-bytes", "64MiB", "--device", "cpu"];
    waymark(&[&["ask", "w1 w2", "--policy", dir][..], &small, flags].concat())
}

#[test]
fn a_policy_of_whole_weights_is_served_as_it_is_and_over_no_others() {
    let root = tempfile::tempdir().unwrap();
    let [one, two] = [("one", 1), ("two", 2)].map(|(name, seed)| {
        model(&root.path().join(name).join("model"), seed);
        policy(root.path(), name, "base = \"model\"")
    });
    let own = format!("{one}/model");
    for flags in [vec![], vec!["--model", own.as_str()]] {
        let asked = ask(&one, &flags);
        assert!(asked.ok(), "{flags:?}: {}", asked.stderr);
    }
    // Both are called `model`.
    let refused = ask(&two, &["--model", &own]);
    assert!(!refused.ok() && refused.stderr.contains("set --model"), "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("{two}/model")), "{}", refused.stderr);
}

#[test]
fn weights_are_known_by_their_id_wherever_they_lie() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("moved");
    model(&dir, 3);
    let id = Weights::open(&dir).unwrap().id();
    let moved = dir.to_str().unwrap();
    let same = policy(root.path(), "same", &format!("base = \"elsewhere\"\nbase_id = \"{id}\""));
    let asked = ask(&same, &["--model", moved]);
    assert!(asked.ok(), "{}", asked.stderr);
    let other = policy(root.path(), "other", "base = \"moved\"\nbase_id = \"00ff\"");
    let refused = ask(&other, &["--model", moved]);
    assert!(!refused.ok() && refused.stderr.contains("base_id"), "{}", refused.stderr);
    assert!(refused.stderr.contains(&id), "{}", refused.stderr);
}

#[test]
fn a_file_of_the_catalog_goes_by_its_name_there() {
    let Some(file) = pulled::policy_if_reachable() else { return };
    let root = tempfile::tempdir().unwrap();
    let dir = policy(root.path(), "named", "base = \"smollm2-135m-instruct\"");
    let asked = ask(&dir, &["--model", file.to_str().unwrap()]);
    assert!(asked.ok(), "{}", asked.stderr);
}
