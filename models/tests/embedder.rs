//! Embeddings of the real MiniLM against what sentence-transformers gives (`scripts/parity/embedder.py`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod pulled;

use std::sync::Arc;

use serde::Deserialize;
use waymark_models::embedder::Embedder;
use waymark_models::kernel::Team;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    pieces: usize,
    embedding: Vec<f32>,
}

fn fixture() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/embedder.json");
    serde_json::from_slice::<Fixture>(&std::fs::read(path).unwrap()).unwrap().cases
}

fn open() -> Embedder {
    Embedder::open(&pulled::embedder(), Arc::new(Team::new(2))).unwrap()
}

#[test]
fn embeddings_agree_with_sentence_transformers() {
    let embedder = open();
    let cases = fixture();
    let texts: Vec<&str> = cases.iter().map(|case| &*case.text).collect();
    let embeddings = embedder.embed(&texts).unwrap();
    for (case, embedding) in cases.iter().zip(&embeddings) {
        assert_eq!(embedding.len(), embedder.dims());
        assert_eq!(embedder.count_tokens(&case.text), case.pieces, "pieces of {:?}", case.text);
        let cosine: f32 = embedding.iter().zip(&case.embedding).map(|(a, b)| a * b).sum();
        let apart = embedding.iter().zip(&case.embedding).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("cosine {cosine:.7}, greatest difference {apart:.1e}: {:.40}", case.text);
        assert!(cosine > 0.9999 && apart < 1e-5, "{:?}: cosine {cosine}, difference {apart}", case.text);
    }
}

#[test]
fn an_embedding_does_not_depend_on_its_company() {
    let embedder = open();
    let cases = fixture();
    let texts: Vec<&str> = cases.iter().map(|case| &*case.text).cycle().take(40).collect();
    let together = embedder.embed(&texts).unwrap();
    for (text, embedding) in texts.iter().zip(&together).take(cases.len()) {
        assert_eq!(&embedder.embed(&[text]).unwrap()[0], embedding, "{text:?}");
    }
    assert!(embedder.embed(&[]).unwrap().is_empty());
    std::thread::scope(|scope| {
        for text in &texts[..3] {
            scope.spawn(|| assert_eq!(embedder.embed(&[text]).unwrap().len(), 1));
        }
    });
}

#[test]
fn its_id_names_the_files() {
    let embedder = open();
    assert_eq!(embedder.dims(), 384);
    assert_eq!(embedder.max_pieces(), 256);
    assert_eq!(embedder.id(), open().id());
    assert!(embedder.id().starts_with("bert-6x384-"), "{}", embedder.id());
}

#[test]
fn damaged_files_are_named() {
    let whole = pulled::embedder();
    let dir = tempfile::tempdir().unwrap();
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let restore = || names.map(|name| std::fs::copy(whole.join(name), dir.path().join(name)).unwrap());
    let refusal = || Embedder::open(dir.path(), Arc::new(Team::new(1))).unwrap_err().to_string();
    for name in names {
        restore();
        let content = std::fs::read(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name), &content[..content.len() / 2]).unwrap();
        assert!(refusal().contains(name), "truncated {name}: {}", refusal());
        std::fs::remove_file(dir.path().join(name)).unwrap();
        assert!(refusal().contains("cannot read") && refusal().contains(name), "missing {name}: {}", refusal());
    }
    restore();
    let config = std::fs::read_to_string(whole.join("config.json")).unwrap();
    for (from, to, named) in [
        ("\"bert\"", "\"llama\"", "model_type \"llama\""),
        ("\"gelu\"", "\"relu\"", "hidden_act \"relu\""),
        (": 12,", ": 5,", "5 heads"),
        (": 1536,", ": 1024,", "encoder.layer.0.intermediate.dense.weight"),
    ] {
        std::fs::write(dir.path().join("config.json"), config.replace(from, to)).unwrap();
        assert!(refusal().contains(named), "{named}: {}", refusal());
    }
}
