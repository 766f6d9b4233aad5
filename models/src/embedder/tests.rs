#![allow(clippy::unwrap_used)]
use serde_json::{Value, json};

use super::*;
use crate::encoder::fixture::{
    DISTILBERT, FFN, HIDDEN, LAYERS, MPNET, PLACES, VOCAB, assert_first_rows, bert, config, padded, renamed, write,
};
use crate::kernel::ByteSupport;

fn open(dir: &tempfile::TempDir) -> Result<Embedder, ModelError> {
    Embedder::open(dir.path(), Arc::new(Team::new(1)))
}

fn vectors(dir: &tempfile::TempDir) -> Vec<Vec<f32>> {
    open(dir).unwrap().embed(&["who wrote faust", "a", "the robbers and faust and a and b and the robbers"]).unwrap()
}

fn assert_close(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-5), "{what}: {found:?} and {expected:?}");
    }
}

#[test]
fn families_agree_on_the_weights_that_they_share() {
    let expected = vectors(&write(&config("bert", PLACES), &bert()));
    assert!(expected.iter().all(|vector| vector.iter().any(|x| x.abs() > 0.01)));
    for model_type in ["roberta", "xlm-roberta"] {
        let dir = write(&config(model_type, PLACES + 2), &padded(bert()));
        assert_close(&vectors(&dir), &expected, model_type);
        assert!(open(&dir).unwrap().id().starts_with("roberta-2x64-"));
    }

    let mut distilbert = renamed(bert(), &DISTILBERT);
    distilbert.remove("embeddings.token_type_embeddings.weight").unwrap();
    let settings = json!({
        "model_type": "distilbert", "activation": "gelu", "dim": HIDDEN, "n_layers": LAYERS, "n_heads": 2,
        "hidden_dim": FFN, "vocab_size": VOCAB, "max_position_embeddings": PLACES, "pad_token_id": 0,
    });
    assert_close(&vectors(&write(&settings, &distilbert)), &expected, "distilbert");
    // As saved with a task head.
    let headed = distilbert.into_iter().map(|(name, tensor)| (format!("distilbert.{name}"), tensor)).collect();
    assert_close(&vectors(&write(&settings, &headed)), &expected, "distilbert with a head");
}

#[test]
fn rounded_vectors_are_near_the_exact_ones_and_independent_of_their_batch() {
    let embedder = open(&write(&config("bert", PLACES), &bert())).unwrap();
    let texts = ["who wrote faust", "a", "the robbers and faust and a and b and the robbers"];
    let exact = embedder.embed(&texts).unwrap();
    let rounded = embedder.embed_rounded(&texts).unwrap();
    for (exact, rounded) in exact.iter().zip(&rounded) {
        let cosine = dot(exact, rounded) / (dot(exact, exact) * dot(rounded, rounded)).sqrt();
        assert!(cosine > 0.999, "{cosine}");
    }
    if ByteSupport::detect().is_some() {
        assert_ne!(exact, rounded);
    }
    let alone: Vec<_> = texts.iter().flat_map(|text| embedder.embed_rounded(&[text]).unwrap()).collect();
    assert_eq!(alone, rounded);
}

#[test]
fn a_query_has_the_same_vector_whatever_is_embedded_beside_it() {
    let words = ["who", "wrote", "faust", "the", "robbers", "and", "a", "b"];
    let text = |i: usize| (0..1 + i % 13).map(|j| words[(i * 5 + j * 3) % words.len()]).collect::<Vec<_>>().join(" ");
    let texts: Vec<String> = (0..40).map(text).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for (threads, rounded) in [(1, false), (1, true), (3, false), (3, true)] {
        let dir = write(&config("bert", PLACES), &bert());
        let embedder = Embedder::open(dir.path(), Arc::new(Team::new(threads))).unwrap();
        let embedder = embedder.with_rounded_queries(rounded);
        let alone: Vec<_> = texts.iter().flat_map(|text| embedder.embed_queries(&[text]).unwrap()).collect();
        for count in [2, 7, 32, 40] {
            for (group, alone) in texts.chunks(count).zip(alone.chunks(count)) {
                assert_eq!(embedder.embed_queries(group).unwrap(), alone, "{threads} threads, rounded: {rounded}");
            }
        }
        let other = if rounded { embedder.embed_rounded(&texts) } else { embedder.embed(&texts) };
        assert_eq!(other.unwrap(), alone);
    }
}

#[test]
fn relative_positions_bias_the_attention() {
    let expected = vectors(&write(&config("bert", PLACES), &bert()));
    let mut mpnet = padded(renamed(bert(), &MPNET));
    mpnet.remove("embeddings.token_type_embeddings.weight").unwrap();
    let settings = config("mpnet", PLACES + 2);
    let mut with = |table: Vec<f32>| {
        mpnet.insert("encoder.relative_attention_bias.weight".to_owned(), (vec![32, 2], table));
        vectors(&write(&settings, &mpnet))
    };
    assert_close(&with(vec![0.0; 64]), &expected, "no bias");
    // A softmax ignores what all scores have in common.
    assert_close(&with(vec![1.5; 64]), &expected, "the same bias everywhere");
    let biased = with((0..64).map(|place| place as f32 / 8.0).collect());
    assert!(biased.iter().flatten().zip(expected.iter().flatten()).any(|(x, y)| (x - y).abs() > 1e-3));
}

#[test]
fn first_rows_do_not_depend_on_the_others() {
    // More pieces than a block of the attention has.
    let long = "the robbers and faust and a ".repeat(6);
    let texts = ["who wrote faust", "a", long.as_str(), "", "b"];
    let mut mpnet = padded(renamed(bert(), &MPNET));
    mpnet.remove("embeddings.token_type_embeddings.weight").unwrap();
    let biases = (0..64).map(|place| place as f32 / 8.0).collect();
    mpnet.insert("encoder.relative_attention_bias.weight".to_owned(), (vec![32, 2], biases));
    for dir in [write(&config("bert", PLACES), &bert()), write(&config("mpnet", PLACES + 2), &mpnet)] {
        let embedder = open(&dir).unwrap();
        let sequences = embedder.tokenize(&texts).unwrap();
        for arithmetic in [EncoderArithmetic::Exact, EncoderArithmetic::Bytes] {
            assert_first_rows(&embedder.encoder, arithmetic, &sequences);
        }
    }
}

#[test]
fn other_families_are_refused_by_name() {
    let error = open(&write(&config("deberta-v2", PLACES), &bert())).unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("deberta-v2") && error.to_string().contains("xlm-roberta"), "{error}");
    let mut silent = config("bert", PLACES);
    silent.as_object_mut().unwrap().remove("hidden_act");
    let error = open(&write(&silent, &bert())).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("no hidden_act: expected \"gelu\""), "{error}");
    let error = open(&write(&config("roberta", 3), &bert())).unwrap_err();
    assert!(error.to_string().contains("max_position_embeddings is 3, not from 5"), "{error}");
}

#[test]
fn prompts_of_the_files_go_before_those_of_a_catalog() {
    let dir = write(&config("bert", PLACES), &bert());
    let catalog = EncoderPrompts { query: "q: ".to_owned(), document: String::new() };
    assert_eq!(open(&dir).unwrap().or_prompts(catalog.clone()).prompts(), &catalog);
    let own = json!({ "prompts": { "query": "ask: ", "document": "" } });
    std::fs::write(dir.path().join("config_sentence_transformers.json"), own.to_string()).unwrap();
    assert_eq!(open(&dir).unwrap().or_prompts(catalog).prompts().query, "ask: ");
}

#[test]
fn modules_and_lengths_are_those_of_the_directory() {
    let dir = write(&config("bert", PLACES), &bert());
    let put = |name: &str, content: Value| std::fs::write(dir.path().join(name), content.to_string()).unwrap();
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    // A plain checkpoint has no normalization, and no length but that of its positions.
    assert!(vectors(&dir).iter().all(|vector| (length(vector) - 1.0).abs() > 1e-3));
    assert_eq!(open(&dir).unwrap().max_pieces(), PLACES);
    put("tokenizer_config.json", json!({ "model_max_length": 1e30 }));
    assert_eq!(open(&dir).unwrap().max_pieces(), PLACES);
    // As sentence-transformers 6 saves it.
    put("tokenizer_config.json", json!({ "model_max_length": 16 }));
    put("sentence_bert_config.json", json!({ "do_lower_case": false }));
    std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
    put(
        "1_Pooling/config.json",
        json!({ "embedding_dimension": HIDDEN, "pooling_mode": "cls", "include_prompt": true }),
    );
    put(
        "modules.json",
        json!([
            { "type": "sentence_transformers.base.modules.transformer.Transformer" },
            { "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling" },
        ]),
    );
    let cls = vectors(&dir);
    assert_eq!(open(&dir).unwrap().max_pieces(), 16);
    assert!(cls.iter().all(|vector| (length(vector) - 1.0).abs() > 1e-3));
    let id = open(&dir).unwrap().id().to_owned();
    put(
        "modules.json",
        json!([
            { "type": "sentence_transformers.base.modules.transformer.Transformer" },
            { "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling" },
            { "type": "sentence_transformers.base.modules.normalize.Normalize" },
        ]),
    );
    for (vector, unscaled) in vectors(&dir).iter().zip(&cls) {
        let by = length(unscaled);
        assert!(vector.iter().zip(unscaled).all(|(x, y)| (x * by - y).abs() < 1e-5));
    }
    assert_eq!(open(&dir).unwrap().id(), id, "the direction is the same");
    put("1_Pooling/config.json", json!({ "pooling_mode": "mean" }));
    assert_ne!(open(&dir).unwrap().id(), id, "the direction is another");
}
