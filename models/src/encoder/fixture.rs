//! Small encoders with pseudo-random weights, for tests.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};

use super::{Encoder, EncoderArithmetic, OutputRows, PieceSequence};

/// Numbers per piece.
pub(crate) const HIDDEN: usize = 64;
/// Numbers inside the feed-forward network.
pub(crate) const FFN: usize = 48;
/// Number of layers.
pub(crate) const LAYERS: usize = 2;
/// Number of word pieces.
pub(crate) const VOCAB: usize = 12;
/// Rows of the position table for pieces.
pub(crate) const PLACES: usize = 40;

/// Tensors by name, with their shapes.
pub(crate) type NamedTensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Tensor of pseudo-random numbers from -0.4 to 0.4.
pub(crate) fn numbers(state: &mut u64, shape: &[usize]) -> (Vec<usize>, Vec<f32>) {
    let count: usize = shape.iter().product();
    let mut next = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (shape.to_vec(), (0..count).map(|_| 0.4 * next()).collect())
}

/// Small weights of a BERT whose segments add nothing.
pub(crate) fn bert() -> NamedTensors {
    let mut state = 1;
    let mut numbers = |shape: &[usize]| numbers(&mut state, shape);
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
pub(crate) fn renamed(tensors: NamedTensors, names: &[(&str, &str)]) -> NamedTensors {
    let rename = |name: String| names.iter().fold(name, |name, (from, to)| name.replace(from, to));
    tensors.into_iter().map(|(name, tensor)| (rename(name), tensor)).collect()
}

/// Puts two rows before the position table, as RoBERTa and MPNet have them for the padding.
pub(crate) fn padded(mut tensors: NamedTensors) -> NamedTensors {
    let (shape, rows) = tensors.get_mut("embeddings.position_embeddings.weight").unwrap();
    shape[0] += 2;
    rows.splice(..0, vec![9.0; 2 * HIDDEN]);
    tensors
}

/// Settings of the small encoder.
pub(crate) fn config(model_type: &str, positions: usize) -> Value {
    json!({
        "model_type": model_type, "hidden_act": "gelu", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "intermediate_size": FFN, "vocab_size": VOCAB, "max_position_embeddings": positions,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 1,
    })
}

/// Writes a model directory with a tokenizer of a few words.
pub(crate) fn write(config: &Value, tensors: &NamedTensors) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let words = ["<s>", "<pad>", "</s>", "<unk>", "who", "wrote", "faust", "and", "the", "robbers", "a", "b"];
    let vocab: BTreeMap<&str, usize> = words.into_iter().zip(0..).collect();
    let special = |id: &str, place: usize| json!({ "id": id, "ids": [place], "tokens": [id] });
    let piece = |name: &str, segment: u8| json!({ "SpecialToken": { "id": name, "type_id": segment } });
    let text = |id: &str, segment: u8| json!({ "Sequence": { "id": id, "type_id": segment } });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("<s>", 0), text("A", 0), piece("</s>", 0)],
            "pair": [piece("<s>", 0), text("A", 0), piece("</s>", 0), text("B", 1), piece("</s>", 1)],
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

/// Asserts that the first row of each sequence is the same to the last bit whether or not the other rows are computed.
pub(crate) fn assert_first_rows(encoder: &Encoder, arithmetic: EncoderArithmetic, sequences: &[PieceSequence]) {
    let rows = |wanted: OutputRows| encoder.run(arithmetic, wanted, sequences, <[f32]>::to_vec).unwrap();
    let all = rows(OutputRows::All);
    let first = rows(OutputRows::First);
    assert_eq!(first.len(), all.len());
    for (first, all) in first.iter().zip(&all) {
        assert_eq!(first.len(), HIDDEN, "no other row is computed");
        assert_eq!(first[..], all[..HIDDEN], "{arithmetic:?}");
    }
}

/// Parts of tensor names in checkpoints of BERT, with those of DistilBERT.
pub(crate) const DISTILBERT: [(&str, &str); 9] = [
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

/// Parts of tensor names in checkpoints of BERT, with those of MPNet.
pub(crate) const MPNET: [(&str, &str); 5] = [
    ("attention.self.query", "attention.attn.q"),
    ("attention.self.key", "attention.attn.k"),
    ("attention.self.value", "attention.attn.v"),
    ("attention.output.dense", "attention.attn.o"),
    ("attention.output.LayerNorm", "attention.LayerNorm"),
];
