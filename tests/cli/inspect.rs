//! Descriptions of encoders by `waymark inspect`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::program::waymark;

/// Copies a fixture of the encoders' tests, with an empty file for the weights, which are not read.
fn directory(name: &str, to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tests/fixtures/encoders").join(name);
    fs::create_dir_all(to.join("1_Pooling")).unwrap();
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
    ] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    fs::write(to.join("model.safetensors"), "").unwrap();
}

#[test]
fn an_embedder_is_described_with_the_command_that_uses_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("nomic");
    directory("nomic", &dir);
    let place = dir.to_str().unwrap();
    let told = waymark(&["inspect", place]);
    assert!(told.ok(), "{}", told.stderr);
    for words in [
        "nomic_bert: 2 layers, width 64",
        "at most 64 pieces",
        "mean, length 1",
        "\"search_query: \"",
        "\"search_document: \"",
        &format!("waymark index build --corpus CORPUS --out INDEX --embedder {place}"),
    ] {
        assert!(told.stdout.contains(words), "{words}: {}", told.stdout);
    }
}

#[test]
fn a_reranker_is_described_and_a_defect_is_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("reranker");
    directory("bert", &dir);
    let path = dir.join("config.json");
    let config = fs::read_to_string(&path).unwrap();
    let inspected = |changes: &[(&str, Value)]| {
        let mut config: Value = serde_json::from_str(&config).unwrap();
        for (field, value) in changes {
            config[field] = value.clone();
        }
        fs::write(&path, config.to_string()).unwrap();
        let told = waymark(&["inspect", dir.to_str().unwrap()]);
        assert!(told.ok(), "{}", told.stderr);
        told.stdout
    };
    let command = format!("waymark serve --index INDEX --reranker {}", dir.display());
    let classifier = ("architectures", json!(["BertForSequenceClassification"]));
    let one_label = ("id2label", json!({"0": "LABEL_0"}));
    let told = inspected(&[classifier.clone(), one_label]);
    assert!(told.contains(&command) && !told.contains("pooling") && !told.contains("problem"), "{told}");

    // Nothing that the server would refuse is recommended.
    let two_labels = ("id2label", json!({"0": "no", "1": "yes"}));
    let relu = [("hidden_act", json!("relu"))];
    for (changes, problem) in [(&[classifier, two_labels][..], "2 labels"), (&relu, "hidden_act \"relu\"")] {
        let told = inspected(changes);
        assert!(told.contains("problem") && told.contains(problem), "{told}");
        assert!(told.contains("after a repair: waymark inspect") && !told.contains("--reranker"), "{told}");
        assert!(!told.contains("--embedder"), "{told}");
    }
}

#[test]
fn a_classifier_whose_head_is_not_supported_is_not_recommended() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("reranker");
    directory("nomic", &dir);
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["architectures"] = json!(["NomicBertForSequenceClassification"]);
    config["id2label"] = json!({"0": "LABEL_0"});
    fs::write(&path, config.to_string()).unwrap();
    let told = waymark(&["inspect", dir.to_str().unwrap()]);
    assert!(told.ok() && told.stdout.contains("classification head of nomic_bert"), "{}", told.stdout);
    assert!(!told.stdout.contains("--reranker"), "{}", told.stdout);
}
