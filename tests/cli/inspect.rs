//! Descriptions of encoders by `waymark inspect`.

use std::fs;
use std::path::Path;

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
    fs::write(&path, config.replace("BertModel", "BertForSequenceClassification")).unwrap();
    let place = dir.to_str().unwrap();
    let told = waymark(&["inspect", place]);
    let command = format!("waymark serve --index INDEX --reranker {place}");
    assert!(told.ok() && told.stdout.contains(&command) && !told.stdout.contains("pooling"), "{}", told.stdout);

    fs::write(&path, config.replace("\"gelu\"", "\"relu\"")).unwrap();
    let told = waymark(&["inspect", place]);
    assert!(told.ok() && told.stdout.contains("hidden_act \"relu\""), "{}", told.stdout);
}
