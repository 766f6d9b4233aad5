//! Settings of directories: summaries, names of former versions, and what is refused.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use waymark_models::ModelError;
use waymark_models::embedder::{Embedder, EmbedderSummary};
use waymark_models::kernel::Team;
use waymark_models::reranker::Reranker;

use super::fixture::{cosine, embedder, fixture, whole};

/// Changes the configuration of a directory.
fn configure(dir: &Path, change: impl Fn(&mut Value)) {
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

/// Error of a directory of the fixture `name` whose configuration has another value.
fn refusal(name: &str, field: &str, value: &Value) -> ModelError {
    let (dir, _) = whole(name);
    configure(dir.path(), |config| config[field] = value.clone());
    Embedder::open(dir.path(), Arc::new(Team::new(1))).unwrap_err()
}

#[test]
fn summaries_tell_what_a_directory_is() {
    for (name, family, pooling, normalizes, query) in [
        ("bert", "bert", "mean", true, ""),
        ("bert-cls", "bert", "cls", true, "Represent this sentence for searching relevant passages: "),
        ("distilbert", "distilbert", "mean", false, ""),
        ("modernbert", "modernbert", "cls", false, ""),
        ("nomic", "nomic_bert", "mean", true, "search_query: "),
        ("gte", "gte", "cls", true, ""),
    ] {
        let summary = EmbedderSummary::read(&fixture(name)).unwrap().unwrap();
        assert_eq!((summary.family, summary.pooling, summary.normalizes), (family, pooling, normalizes), "{name}");
        assert_eq!((summary.dims, summary.max_pieces, summary.prompts.query.as_str()), (64, 64, query), "{name}");
    }
    // A decoder is an embedder with the files of sentence-transformers alone.
    let (dir, _) = whole("qwen3");
    let summary = EmbedderSummary::read(dir.path()).unwrap().unwrap();
    assert_eq!((summary.family, summary.pooling, summary.layers), ("qwen3", "lasttoken", 2));
    assert!(summary.prompts.query.starts_with("Instruct: ") && summary.prompts.document.is_empty());
    // Without weights, as while they are pulled.
    std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert_eq!(EmbedderSummary::read(dir.path()).unwrap().unwrap(), summary);
    std::fs::remove_file(dir.path().join("modules.json")).unwrap();
    assert_eq!(EmbedderSummary::read(dir.path()).unwrap(), None);
    let error = Embedder::open(dir.path(), Arc::new(Team::new(1))).unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains("modules.json"), "{error}");
    // A damaged file is no file of another kind.
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    assert!(EmbedderSummary::read(dir.path()).unwrap_err().to_string().contains("config.json"));
    std::fs::write(dir.path().join("config.json"), json!({ "model_type": "llama" }).to_string()).unwrap();
    assert_eq!(EmbedderSummary::read(dir.path()).unwrap(), None);
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    assert_eq!(EmbedderSummary::read(dir.path()).unwrap(), None);
}

#[test]
fn settings_that_are_not_computed_are_refused_by_name() {
    for (name, field, value) in [
        ("nomic", "rotary_emb_fraction", json!(0.5)),
        ("nomic", "rotary_emb_interleaved", json!(true)),
        ("nomic", "prenorm", json!(true)),
        ("nomic", "causal", json!(true)),
        ("nomic", "num_experts", json!(8)),
        ("nomic", "activation_function", json!("gelu")),
        ("nomic", "rope_parameters", json!({ "rope_type": "yarn", "rope_theta": 1000.0 })),
        ("gte", "position_embedding_type", json!("absolute")),
        ("gte", "layer_norm_type", json!("rms_norm")),
        ("gte", "pack_qkv", json!(false)),
        ("gte", "logn_attention_scale", json!(true)),
        ("gte", "rope_parameters", json!({ "rope_type": "dynamic", "factor": 2.0 })),
        ("gte", "rope_parameters", json!({ "rope_type": "ntk", "factor": 2.0, "mixed_b": 0.5 })),
        ("gte", "hidden_act", json!("relu")),
        ("qwen3", "use_sliding_window", json!(true)),
        ("qwen3", "is_causal", json!(false)),
    ] {
        let error = refusal(name, field, &value);
        let text = error.to_string();
        let named = if field == "rope_parameters" { "type \"" } else { field };
        assert!(matches!(error, ModelError::Unsupported { .. }), "{name} {field}: {text}");
        assert!(text.contains("config.json") && text.contains(named), "{name} {field}: {text}");
    }
    for (name, rope, named) in [
        ("nomic", json!({ "rope_theta": 0.5 }), "rotary base"),
        ("gte", json!({ "rope_theta": -1.0 }), "rotary base"),
        // Angles would be infinite, and every vector NaN.
        ("gte", json!({ "rope_type": "linear", "factor": 1e-39 }), "rotary factor"),
    ] {
        let error = refusal(name, "rope_parameters", &rope);
        assert!(matches!(error, ModelError::Corrupt { .. }) && error.to_string().contains(named), "{error}");
    }
    let rope = json!({ "rope_type": "linear", "factor": 1e-39, "rope_theta": 1e6 });
    assert!(refusal("qwen3", "rope_parameters", &rope).to_string().contains("rope factor"));
}

#[test]
fn nomic_has_the_names_of_its_own_program_too() {
    let (dir, _) = whole("nomic");
    let text = "who was born in the third county";
    let expected = embedder(dir.path()).embed(&[text]).unwrap();
    configure(dir.path(), |config| {
        for (from, to) in [
            ("hidden_size", "n_embd"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("intermediate_size", "n_inner"),
            ("max_position_embeddings", "n_positions"),
            ("layer_norm_eps", "layer_norm_epsilon"),
        ] {
            config[to] = config[from].take();
        }
        config["activation_function"] = "swiglu".into();
        config["rotary_emb_base"] = config["rope_parameters"]["rope_theta"].take();
        config["rope_parameters"].take();
        config["rotary_emb_fraction"] = 1.0.into();
    });
    assert_eq!(embedder(dir.path()).embed(&[text]).unwrap(), expected);
    // As the repository of nomic-embed-text-v1.5 states them: both names side by side, and more positions than trained.
    configure(dir.path(), |config| {
        config["max_position_embeddings"] = 32.into();
        config["max_trained_positions"] = 32.into();
    });
    assert_eq!(embedder(dir.path()).max_pieces(), 64);
    configure(dir.path(), |config| config["rotary_scaling_factor"] = 2.0.into());
    assert_eq!(embedder(dir.path()).max_pieces(), 32, "rotations of longer texts would depend on their length");
}

#[test]
fn gte_has_the_names_of_its_own_program_too() {
    let (dir, expected) = whole("gte");
    let texts: Vec<&str> = expected.cases.iter().map(|case| case.text.as_str()).collect();
    // As the authors of gte-multilingual-base state the same rotations.
    let vectors = |scaling: &Value, theta: f32| {
        configure(dir.path(), |config| {
            config["model_type"] = "new".into();
            config["rope_parameters"].take();
            config["rope_theta"] = theta.into();
            config["rope_scaling"] = scaling.clone();
            config["position_embedding_type"] = "rope".into();
        });
        embedder(dir.path()).embed(&texts).unwrap()
    };
    let scaled = vectors(&json!({ "type": "ntk", "factor": 8.0 }), 20_000.0);
    for (vector, case) in scaled.iter().zip(&expected.cases) {
        assert!(cosine(vector, &case.embedding) > 0.9999, "{}", case.text);
    }
    let plain = vectors(&Value::Null, 20_000.0);
    assert!(cosine(&plain[0], &scaled[0]) < 0.9999, "the scaling changes the vectors");
    assert_eq!(vectors(&json!({ "type": "ntk", "factor": 1.0 }), 20_000.0), plain);
}

#[test]
fn rounded_vectors_are_near_the_exact_ones() {
    let texts = ["who was born in the third county", "the author of the robbers was a physicist"];
    for name in ["nomic", "gte", "qwen3"] {
        let (dir, _) = whole(name);
        let embedder = embedder(dir.path());
        let exact = embedder.embed(&texts).unwrap();
        for (exact, rounded) in exact.iter().zip(&embedder.embed_rounded(&texts).unwrap()) {
            assert!(cosine(exact, rounded) > 0.999, "{name}: {}", cosine(exact, rounded));
        }
    }
}

#[test]
fn a_decoder_needs_no_output_projection() {
    let (dir, _) = whole("qwen3");
    let before = embedder(dir.path());
    // As in Qwen3-Embedding-8B, whose checkpoint has no output projection.
    configure(dir.path(), |config| config["tie_word_embeddings"] = false.into());
    let after = embedder(dir.path());
    assert_eq!(before.embed(&["nine villages"]).unwrap(), after.embed(&["nine villages"]).unwrap());
    assert!(before.id().starts_with("qwen3-2x64-") && before.id() != after.id());
}

#[test]
fn texts_of_a_decoder_have_a_bound() {
    let (dir, _) = whole("qwen3");
    configure(dir.path(), |config| config["max_position_embeddings"] = 32_768.into());
    std::fs::write(dir.path().join("tokenizer_config.json"), json!({ "model_max_length": 131_072 }).to_string())
        .unwrap();
    let embedder = embedder(dir.path());
    assert_eq!(embedder.max_pieces(), 8192);
    // More pieces than a pass of short texts has room for.
    let long = "x ".repeat(3000);
    let [alone, beside] = [vec![&*long], vec!["nine villages", &*long]].map(|texts| embedder.embed(&texts).unwrap());
    assert_eq!(alone.last(), beside.last());
}

#[test]
fn texts_without_pieces_have_vectors() {
    for name in ["bert", "mpnet", "modernbert", "nomic", "gte", "qwen3"] {
        let (dir, _) = whole(name);
        let path = dir.path().join("tokenizer.json");
        let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        // Without a template, nothing marks the ends of a text.
        tokenizer["post_processor"] = Value::Null;
        std::fs::write(path, tokenizer.to_string()).unwrap();
        let embedder = embedder(dir.path());
        let vectors = embedder.embed(&[""]).unwrap();
        assert!(vectors[0].len() == 64 && vectors[0].iter().all(|x| x.is_finite()), "{name}: {vectors:?}");
        assert_eq!(embedder.embed(&["nine villages", ""]).unwrap()[1], vectors[0], "{name}");
        assert_eq!(embedder.embed_rounded(&[""]).unwrap(), vectors, "{name}");
    }
}

#[test]
fn heads_of_modernbert_with_other_settings_are_refused() {
    for (field, value) in [("classifier_pooling", "max"), ("classifier_activation", "relu")] {
        let (dir, _) = whole("modernbert-reranker");
        configure(dir.path(), |config| config[field] = value.into());
        let error = Reranker::open(dir.path(), Arc::new(Team::new(1))).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains(field), "{error}");
    }
}

#[test]
fn heads_that_are_not_computed_are_refused() {
    for (name, named) in [
        ("nomic", "classification head of nomic_bert"),
        ("gte", "classification head of gte"),
        ("qwen3", "model_type \"qwen3\""),
    ] {
        let (dir, _) = whole(name);
        configure(dir.path(), |config| {
            config["num_labels"] = 1.into();
            config["architectures"] = json!(["AnyForSequenceClassification"]);
        });
        let error = Reranker::open(dir.path(), Arc::new(Team::new(1))).unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }) && error.to_string().contains(named), "{error}");
    }
}
