//! Embeddings of the real MiniLM compared with sentence-transformers (`scripts/parity/embedder.py`).
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod pulled;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use waymark_models::ModelError;
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

const NAMES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

fn fixture() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/embedder.json");
    serde_json::from_slice::<Fixture>(&std::fs::read(path).unwrap()).unwrap().cases
}

fn open() -> Embedder {
    Embedder::open(&pulled::embedder(), Arc::new(Team::new(2))).unwrap()
}

/// Copies the required files to a new folder, and returns the text of `config.json`.
fn copy() -> (tempfile::TempDir, String) {
    let whole = pulled::embedder();
    let dir = tempfile::tempdir().unwrap();
    for name in NAMES {
        std::fs::copy(whole.join(name), dir.path().join(name)).unwrap();
    }
    (dir, std::fs::read_to_string(whole.join("config.json")).unwrap())
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
fn a_query_does_not_wait_for_a_whole_batch() {
    let embedder = open();
    let long = "the longest of all passages goes on and on ".repeat(40);
    let batch = vec![long.as_str(); 32];
    let mut measured = Vec::new();
    // Several times, because another process may take the CPU during one query.
    while measured.len() < 3 {
        let done = AtomicBool::new(false);
        let (whole, longest) = std::thread::scope(|scope| {
            let batch = scope.spawn(|| {
                let started = Instant::now();
                assert_eq!(embedder.embed(&batch).unwrap().len(), 32);
                done.store(true, Ordering::Release);
                started.elapsed()
            });
            let mut longest = Duration::ZERO;
            while !done.load(Ordering::Acquire) {
                let started = Instant::now();
                embedder.embed(&["a query"]).unwrap();
                longest = longest.max(started.elapsed());
            }
            (batch.join().unwrap(), longest)
        });
        // The batch has eight passes: a caller that waits for one or two of them is far from waiting for all.
        if longest < whole / 2 {
            return;
        }
        measured.push((longest, whole));
    }
    panic!("queries and the batches beside them took {measured:?}");
}

#[test]
fn its_id_names_the_files() {
    let embedder = open();
    assert_eq!(embedder.dims(), 384);
    assert_eq!(embedder.max_pieces(), 256);
    assert_eq!(embedder.id(), open().id());
    let hash = embedder.id().strip_prefix("bert-6x384-").unwrap();
    assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");

    let (dir, _) = copy();
    let reopen = || Embedder::open(dir.path(), Arc::new(Team::new(1))).unwrap();
    assert_eq!(reopen().id(), embedder.id(), "the same files in another place");
    std::fs::write(dir.path().join("sentence_bert_config.json"), "{\"max_seq_length\": 128}").unwrap();
    assert_eq!(reopen().max_pieces(), 128);
    assert_ne!(reopen().id(), embedder.id(), "texts are cut elsewhere");
}

#[test]
fn damaged_files_are_named() {
    let (dir, config) = copy();
    let refusal = || Embedder::open(dir.path(), Arc::new(Team::new(1))).unwrap_err().to_string();
    for name in NAMES {
        let content = std::fs::read(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name), &content[..content.len() / 2]).unwrap();
        assert!(refusal().contains(name), "truncated {name}: {}", refusal());
        std::fs::remove_file(dir.path().join(name)).unwrap();
        assert!(refusal().contains("cannot read") && refusal().contains(name), "missing {name}: {}", refusal());
        std::fs::write(dir.path().join(name), content).unwrap();
    }
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

#[test]
fn what_changes_the_arithmetic_is_refused_by_name() {
    let (dir, config) = copy();
    let open = || Embedder::open(dir.path(), Arc::new(Team::new(1)));
    let write = |name: &str, json: &serde_json::Value| std::fs::write(dir.path().join(name), json.to_string()).unwrap();
    let refused = |named: &str| {
        let error = open().unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains(named), "{error}");
    };
    let mut other: serde_json::Value = serde_json::from_str(&config).unwrap();
    other["position_embedding_type"] = "relative_key".into();
    write("config.json", &other);
    refused("position_embedding_type \"relative_key\"");
    std::fs::write(dir.path().join("config.json"), config).unwrap();

    // This tokenizer lower-cases by itself.
    write("sentence_bert_config.json", &serde_json::json!({ "max_seq_length": 256, "do_lower_case": true }));
    open().unwrap();
    let tokenizer = std::fs::read(dir.path().join("tokenizer.json")).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&tokenizer).unwrap();
    tokenizer["normalizer"]["lowercase"] = false.into();
    write("tokenizer.json", &tokenizer);
    refused("do_lower_case");
}

#[test]
fn merges_outside_the_vocabulary_are_named() {
    let (dir, _) = copy();
    let model = serde_json::json!({ "type": "BPE", "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": ["ab ab"] });
    let whole = serde_json::json!({ "version": "1.0", "added_tokens": [], "model": model });
    std::fs::write(dir.path().join("tokenizer.json"), whole.to_string()).unwrap();
    let error = Embedder::open(dir.path(), Arc::new(Team::new(1))).unwrap_err();
    assert!(matches!(error, ModelError::Corrupt { .. }) && error.to_string().contains("merge"), "{error}");
}

#[test]
fn sizes_out_of_bounds_are_named() {
    let (dir, config) = copy();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    for (field, sizes) in [
        ("hidden_size", [0, 1 << 27]),
        ("num_hidden_layers", [1 << 27, u64::MAX]),
        ("num_attention_heads", [0, u64::MAX]),
        ("intermediate_size", [0, u64::MAX]),
        ("vocab_size", [0, u64::MAX]),
        ("max_position_embeddings", [0, 2]),
        ("type_vocab_size", [0, u64::MAX]),
    ] {
        for size in sizes {
            let mut config = config.clone();
            config[field] = size.into();
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            let error = Embedder::open(dir.path(), Arc::new(Team::new(1))).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, ModelError::Corrupt { .. }), "{field} {size}: {text}");
            assert!(text.contains("config.json") && text.contains(&format!("{field} is {size}")), "{text}");
        }
    }
}

#[test]
fn several_poolings_or_another_module_are_refused() {
    let (dir, _) = copy();
    std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
    let open = |pooling: &str, module: &str| {
        std::fs::write(dir.path().join("1_Pooling/config.json"), pooling).unwrap();
        let modules = format!("[{{\"type\": \"sentence_transformers.models.{module}\"}}]");
        std::fs::write(dir.path().join("modules.json"), modules).unwrap();
        Embedder::open(dir.path(), Arc::new(Team::new(1)))
    };
    let mean =
        "{\"word_embedding_dimension\": 384, \"pooling_mode_cls_token\": false, \"pooling_mode_mean_tokens\": true}";
    open(mean, "Normalize").unwrap();
    for (pooling, module, named) in [
        (mean.replace("false", "true"), "Normalize", "cls_token + mean_tokens"),
        (mean.replace("mean_tokens", "weightedmean_tokens"), "Normalize", "weightedmean_tokens"),
        (mean.to_owned(), "Dense", "models.Dense"),
    ] {
        let error = open(&pooling, module).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains(named), "{error}");
    }
}
