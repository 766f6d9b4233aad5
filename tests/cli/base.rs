//! Selection of the base model of a policy.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::json;
use waymark_models::architecture::Architecture;
use waymark_models::decoder::{DecoderConfig, RopeScaling};
use waymark_models::weights::{Weights, write_random};

use super::program::{ProgramRun, Serving, waymark};
use super::pulled;

/// Writes a model with random weights and a small vocabulary into the new folder `dir`.
pub(super) fn model(dir: &Path, seed: u64) {
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
        architecture: Architecture::default(),
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

/// Flags of a small server.
pub(super) const SMALL: [&str; 8] = ["--embedder", "mock", "--threads", "1", "--kv-bytes", "64MiB", "--device", "cpu"];

/// Asks the policy in `dir`, over the base model that `flags` name.
fn ask(dir: &str, flags: &[&str]) -> ProgramRun {
    waymark(&[&["ask", "w1 w2", "--policy", dir][..], &SMALL, flags].concat())
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

#[test]
fn weights_beside_the_file_answer_in_its_name() {
    let root = tempfile::tempdir().unwrap();
    let dir = policy(root.path(), "own", "");
    let refused = ask(&dir, &[]);
    assert!(!refused.ok() && refused.stderr.contains("names no base model"), "{}", refused.stderr);
    let unknown = ask(&policy(root.path(), "unknown", "base = \"qwen-of-mine\""), &[]);
    assert!(!unknown.ok() && unknown.stderr.contains("qwen-of-mine"), "{}", unknown.stderr);
    model(Path::new(&dir), 4);
    let id = Weights::open(Path::new(&dir)).unwrap().id();
    let asked = ask(&dir, &["--log", "info"]);
    assert!(asked.ok(), "{}", asked.stderr);
    for words in ["loaded the weights", "model.safetensors", "parameters=", &id, "no chat template"] {
        assert!(asked.stderr.contains(words), "{words}: {}", asked.stderr);
    }
    // The folder can also be given as the model.
    let named = waymark(&[&["ask", "w1 w2", "--model", &dir][..], &SMALL].concat());
    assert!(named.ok() && named.stdout.contains("(own)"), "{}{}", named.stdout, named.stderr);
}

#[test]
fn a_trained_checkpoint_is_inspected_and_served_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("trained");
    model(&dir, 5);
    let place = dir.to_str().unwrap();
    let told = waymark(&["inspect", place]);
    let id = Weights::open(&dir).unwrap().id();
    for words in ["Hugging Face checkpoint", "llama: 1 layers", &id, "48 tokens", "waymark serve --model", "search-r1"]
    {
        assert!(told.ok() && told.stdout.contains(words), "{words}: {}{}", told.stdout, told.stderr);
    }
    let server = Serving::start(&[&["--model", place, "--protocol", "plain"][..], &SMALL].concat());
    let models = models(&server.url);
    let first = &models["data"][0];
    assert_eq!((&first["id"], &first["protocol"]), (&json!("trained"), &json!("plain")), "{models}");
    assert_eq!((&first["weights"]["files"], &first["weights"]["id"]), (&json!(["model.safetensors"]), &json!(id)));
    drop(server);

    fs::rename(dir.join("model.safetensors"), dir.join("pytorch_model.bin")).unwrap();
    let told = waymark(&["inspect", place]);
    assert!(told.ok() && told.stdout.contains("pytorch_model.bin, which is not served"), "{}", told.stdout);
    let refused = waymark(&[&["ask", "w1", "--policy-name", "plain", "--model", place][..], &SMALL].concat());
    assert!(!refused.ok() && refused.stderr.contains("safe_serialization=True"), "{}", refused.stderr);
}

#[test]
fn experts_are_told_of_a_checkpoint() {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tests/fixtures/experts/qwen3-moe");
    let told = waymark(&["inspect", place]);
    for words in ["qwen3_moe: 3 layers", "8 in a layer, 3 per token"] {
        assert!(told.ok() && told.stdout.contains(words), "{words}: {}{}", told.stdout, told.stderr);
    }
}

/// Returns the answer of `/v1/models`.
fn models(url: &str) -> serde_json::Value {
    let address = url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET /v1/models HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}
