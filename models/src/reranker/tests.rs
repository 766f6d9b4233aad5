#![allow(clippy::unwrap_used)]

mod plain;

use serde_json::{Value, json};

use super::*;
use crate::encoder::fixture::{
    DISTILBERT, FFN, HIDDEN, LAYERS, MPNET, NamedTensors, PLACES, VOCAB, bert, config, numbers, padded, renamed, write,
};

const QUERY: &str = "who wrote faust";
const DOCUMENTS: [&str; 5] = [
    "faust",
    "a and b and the robbers",
    "",
    "the robbers and faust and a and b and the robbers who wrote faust",
    "unknown words and faust",
];

/// Weights of a BERT that tells segments apart, with the head of a classifier of one label.
fn classifier() -> NamedTensors {
    let mut tensors = bert();
    let mut state = 7;
    for (name, shape) in [
        ("embeddings.token_type_embeddings.weight", vec![2, HIDDEN]),
        ("pooler.dense.weight", vec![HIDDEN, HIDDEN]),
        ("pooler.dense.bias", vec![HIDDEN]),
        ("classifier.weight", vec![1, HIDDEN]),
        ("classifier.bias", vec![1]),
    ] {
        tensors.insert(name.to_owned(), numbers(&mut state, &shape));
    }
    // As transformers saves it: the encoder under its name, the head beside it.
    let prefixed = |name: String| if name.starts_with("classifier") { name } else { format!("bert.{name}") };
    tensors.into_iter().map(|(name, tensor)| (prefixed(name), tensor)).collect()
}

/// Settings of a classifier of one label.
fn settings(model_type: &str, positions: usize) -> Value {
    let mut settings = config(model_type, positions);
    settings["id2label"] = json!({ "0": "LABEL_0" });
    settings
}

fn open(dir: &tempfile::TempDir) -> Result<Reranker, ModelError> {
    Reranker::open(dir.path(), Arc::new(Team::new(2)))
}

fn scores(dir: &tempfile::TempDir) -> Vec<f32> {
    open(dir).unwrap().score(QUERY, &DOCUMENTS).unwrap()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-4), "{found:?} and {expected:?}");
}

/// IDs of the words of a text in the vocabulary of the fixture.
fn ids(text: &str) -> Vec<usize> {
    let words = ["<s>", "<pad>", "</s>", "<unk>", "who", "wrote", "faust", "and", "the", "robbers", "a", "b"];
    text.split_whitespace().map(|word| words.iter().position(|known| *known == word).unwrap_or(3)).collect()
}

/// Pieces and segments of a pair: `<s> query </s> document </s>`.
fn pair(query: &str, document: &str) -> Vec<(usize, usize)> {
    let first = [vec![0], ids(query), vec![2]].concat().into_iter().map(|id| (id, 0));
    let second = [ids(document), vec![2]].concat().into_iter().map(|id| (id, 1));
    first.chain(second).collect()
}

#[test]
fn pairs_are_scored_as_a_plain_implementation_scores_them() {
    let tensors = classifier();
    let expected: Vec<f32> =
        DOCUMENTS.iter().map(|document| plain::logit(&tensors, &pair(QUERY, document)) as f32).collect();
    let found = scores(&write(&settings("bert", PLACES), &tensors));
    assert_close(&found, &expected);
    assert!(found.iter().any(|x| (x - found[0]).abs() > 0.01), "the scores differ: {found:?}");
    assert!((sigmoid(0.0) - 0.5).abs() < 1e-7 && sigmoid(200.0) <= 1.0 && sigmoid(-200.0) >= 0.0);
}

#[test]
fn a_score_does_not_depend_on_its_batch() {
    let reranker = open(&write(&settings("bert", PLACES), &classifier())).unwrap();
    let many: Vec<&str> = DOCUMENTS.iter().copied().cycle().take(173).collect();
    let together = reranker.score(QUERY, &many).unwrap();
    for (place, document) in many.iter().enumerate() {
        assert_eq!(reranker.score(QUERY, &[document]).unwrap()[0].to_bits(), together[place].to_bits(), "{place}");
    }
    let reversed: Vec<&str> = many.iter().rev().copied().collect();
    let mut backwards = reranker.score(QUERY, &reversed).unwrap();
    backwards.reverse();
    assert_eq!(backwards, together);
    assert!(reranker.score(QUERY, &[]).unwrap().is_empty());
}

#[test]
fn families_agree_on_the_weights_that_they_share() {
    // Without segments, as the other families have them.
    let mut bert = classifier();
    bert.get_mut("bert.embeddings.token_type_embeddings.weight").unwrap().1.fill(0.0);
    let expected = scores(&write(&settings("bert", PLACES), &bert));
    let stripped = renamed(bert, &[("bert.", "")]);
    let head = [("classifier", "classifier.out_proj"), ("pooler.dense", "classifier.dense")];
    for model_type in ["roberta", "xlm-roberta"] {
        let dir = write(&settings(model_type, PLACES + 2), &padded(renamed(stripped.clone(), &head)));
        assert_close(&scores(&dir), &expected);
        assert!(open(&dir).unwrap().id().starts_with("roberta-2x64-rerank-"));
    }
    let mut mpnet = padded(renamed(renamed(stripped.clone(), &head), &MPNET));
    mpnet.remove("embeddings.token_type_embeddings.weight").unwrap();
    mpnet.insert("encoder.relative_attention_bias.weight".to_owned(), (vec![32, 2], vec![0.0; 64]));
    assert_close(&scores(&write(&settings("mpnet", PLACES + 2), &mpnet)), &expected);
    let mut distilbert = renamed(renamed(stripped.clone(), &DISTILBERT), &[("pooler.dense", "pre_classifier")]);
    distilbert.remove("embeddings.token_type_embeddings.weight").unwrap();
    let settings = json!({
        "model_type": "distilbert", "activation": "gelu", "dim": HIDDEN, "n_layers": LAYERS, "n_heads": 2,
        "hidden_dim": FFN, "vocab_size": VOCAB, "max_position_embeddings": PLACES, "num_labels": 1,
    });
    let found = scores(&write(&settings, &distilbert));
    // DistilBERT's head has another activation, which the plain implementation takes as well.
    let expected: Vec<f32> =
        DOCUMENTS.iter().map(|document| plain::logit_relu(&stripped, &pair(QUERY, document)) as f32).collect();
    assert_close(&found, &expected);
}

#[test]
fn long_pairs_lose_the_end_of_the_document() {
    let reranker = open(&write(&settings("bert", 12), &shortened(classifier(), 12))).unwrap();
    assert_eq!(reranker.max_pieces(), 12);
    let score = |query: &str, document: &str| reranker.score(query, &[document]).unwrap()[0];
    // 12 pieces less 3 special ones leave 6 for the document and 3 for the query.
    let six = "the robbers and a and b";
    assert_eq!(score(QUERY, six), score(QUERY, &format!("{six} faust and many others")));
    assert_ne!(score(QUERY, six), score(QUERY, "the robbers and a and"));
    // A long query leaves the document half of the room.
    let long = "who wrote faust and the robbers and a and b and faust";
    assert_eq!(score(long, six), score("who wrote faust and the", "the robbers and a"));
    // A query next to a short document may be longer.
    assert_ne!(score(long, "faust"), score("who wrote faust and the", "faust"));
    let huge = "faust and the robbers ".repeat(100_000);
    assert!(score(&huge, &huge).is_finite());
}

/// Cuts the position table to `positions` rows.
fn shortened(mut tensors: NamedTensors, positions: usize) -> NamedTensors {
    let (shape, rows) = tensors.get_mut("bert.embeddings.position_embeddings.weight").unwrap();
    shape[0] = positions;
    rows.truncate(positions * HIDDEN);
    tensors
}

#[test]
fn refusals_name_file_and_field() {
    let refused = |settings: &Value, tensors: &NamedTensors| open(&write(settings, tensors)).unwrap_err().to_string();
    let mut three = settings("bert", PLACES);
    three["id2label"] = json!({ "0": "a", "1": "b", "2": "c" });
    let error = refused(&three, &classifier());
    assert!(error.contains("config.json") && error.contains("id2label of 3 labels"), "{error}");
    let error = refused(&config("bert", PLACES), &classifier());
    assert!(error.contains("config.json") && error.contains("num_labels of 2 labels"), "{error}");
    let mut masked = settings("bert", PLACES);
    masked["architectures"] = json!(["BertForMaskedLM"]);
    let error = refused(&masked, &classifier());
    assert!(error.contains("config.json") && error.contains("BertForMaskedLM"), "{error}");
    let error = refused(&settings("t5", PLACES), &classifier());
    assert!(error.contains("config.json") && error.contains("\"t5\""), "{error}");
    let error = refused(&settings("bert", PLACES), &bert());
    assert!(error.contains("model.safetensors") && error.contains("pooler.dense.weight"), "{error}");
    let mut wide = classifier();
    wide.insert("classifier.weight".to_owned(), (vec![2, HIDDEN], vec![0.0; 2 * HIDDEN]));
    let error = refused(&settings("bert", PLACES), &wide);
    assert!(error.contains("model.safetensors") && error.contains("classifier.weight: shape [2, 64]"), "{error}");
    // A model with one segment puts both texts into it, as it cannot tell them apart.
    let mut single = settings("bert", PLACES);
    single["type_vocab_size"] = json!(1);
    let mut tensors = classifier();
    tensors.insert("bert.embeddings.token_type_embeddings.weight".to_owned(), (vec![1, HIDDEN], vec![0.0; HIDDEN]));
    assert!(open(&write(&single, &tensors)).unwrap().score(QUERY, &["faust"]).is_ok());
}
