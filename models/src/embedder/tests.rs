#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};

use super::*;

const HIDDEN: usize = 64;
const FFN: usize = 48;
const LAYERS: usize = 2;
const VOCAB: usize = 12;
/// Rows of the position table for pieces.
const PLACES: usize = 40;

/// Tensors by name, with their shapes.
type NamedTensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Small weights of a BERT whose segments add nothing.
fn bert() -> NamedTensors {
    let mut state = 1_u64;
    let mut numbers = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (shape.to_vec(), (0..count).map(|_| 0.4 * next()).collect::<Vec<f32>>())
    };
    let mut tensors = NamedTensors::new();
    let mut set = |name: &str, shape: &[usize]| tensors.insert(name.to_owned(), numbers(shape));
    set("embeddings.word_embeddings.weight", &[VOCAB, HIDDEN]);
    set("embeddings.position_embeddings.weight", &[PLACES, HIDDEN]);
    set("embeddings.LayerNorm.weight", &[HIDDEN]);
    set("embeddings.LayerNorm.bias", &[HIDDEN]);
    for layer in 0..LAYERS {
        for (part, out, inn) in [
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", FFN, HIDDEN),
            ("output.dense", HIDDEN, FFN),
        ] {
            set(&format!("encoder.layer.{layer}.{part}.weight"), &[out, inn]);
            set(&format!("encoder.layer.{layer}.{part}.bias"), &[out]);
        }
        for part in ["attention.output.LayerNorm", "output.LayerNorm"] {
            set(&format!("encoder.layer.{layer}.{part}.weight"), &[HIDDEN]);
            set(&format!("encoder.layer.{layer}.{part}.bias"), &[HIDDEN]);
        }
    }
    tensors.insert("embeddings.token_type_embeddings.weight".to_owned(), (vec![2, HIDDEN], vec![0.0; 2 * HIDDEN]));
    tensors
}

/// Replaces parts of the tensors' names, one pair after another.
fn renamed(tensors: NamedTensors, names: &[(&str, &str)]) -> NamedTensors {
    let rename = |name: String| names.iter().fold(name, |name, (from, to)| name.replace(from, to));
    tensors.into_iter().map(|(name, tensor)| (rename(name), tensor)).collect()
}

/// Puts two rows before the position table, as RoBERTa and MPNet have them for the padding.
fn padded(mut tensors: NamedTensors) -> NamedTensors {
    let (shape, rows) = tensors.get_mut("embeddings.position_embeddings.weight").unwrap();
    shape[0] += 2;
    rows.splice(..0, vec![9.0; 2 * HIDDEN]);
    tensors
}

fn config(model_type: &str, positions: usize) -> Value {
    json!({
        "model_type": model_type, "hidden_act": "gelu", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": positions,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 1,
    })
}

/// Writes a directory with a tokenizer of a few words.
fn write(config: &Value, tensors: &NamedTensors) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let words = ["<s>", "<pad>", "</s>", "<unk>", "who", "wrote", "faust", "and", "the", "robbers", "a", "b"];
    let vocab: BTreeMap<&str, usize> = words.into_iter().zip(0..).collect();
    let special = |id: &str, place: usize| json!({ "id": id, "ids": [place], "tokens": [id] });
    let piece = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("<s>"), text("A"), piece("</s>")],
            "pair": [piece("<s>"), text("A"), piece("</s>"), text("B"), piece("</s>")],
            "special_tokens": { "<s>": special("<s>", 0), "</s>": special("</s>", 2) },
        },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
    });
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, values))| (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = bytes
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(Dtype::F32, (*shape).clone(), bytes).unwrap()));
    let weights = serialize(views, None).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), weights).unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

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

/// Names in a checkpoint of BERT, and in one of DistilBERT.
const DISTILBERT: [(&str, &str); 9] = [
    ("attention.self.query", "attention.q_lin"),
    ("attention.self.key", "attention.k_lin"),
    ("attention.self.value", "attention.v_lin"),
    ("attention.output.dense", "attention.out_lin"),
    ("attention.output.LayerNorm", "sa_layer_norm"),
    ("intermediate.dense", "ffn.lin1"),
    ("output.dense", "ffn.lin2"),
    ("output.LayerNorm", "output_layer_norm"),
    ("encoder.layer", "transformer.layer"),
];

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
fn relative_positions_bias_the_attention() {
    let expected = vectors(&write(&config("bert", PLACES), &bert()));
    let names = [
        ("attention.self.query", "attention.attn.q"),
        ("attention.self.key", "attention.attn.k"),
        ("attention.self.value", "attention.attn.v"),
        ("attention.output.dense", "attention.attn.o"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
    ];
    let mut mpnet = padded(renamed(bert(), &names));
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
fn other_families_are_refused_by_name() {
    let error = open(&write(&config("modernbert", PLACES), &bert())).unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("modernbert") && error.to_string().contains("xlm-roberta"), "{error}");
    let error = open(&write(&config("roberta", 3), &bert())).unwrap_err();
    assert!(error.to_string().contains("max_position_embeddings is 3, not from 5"), "{error}");
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
