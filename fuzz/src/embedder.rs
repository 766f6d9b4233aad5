//! Folders of embedders as they are pulled: whatever they hold, they embed or they are refused.
//!
//! Input: `config.json`, `tokenizer.json`, `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json`,
//! `tokenizer_config.json`, `config_sentence_transformers.json`, `model.safetensors.index.json` and `model.safetensors`, a zero
//! byte between each two; what is empty is not there. Zeros are put behind the tensors up to the
//! length that their header gives them, so that a header is enough.

use std::sync::Arc;

use serde_json::Value;
use waymark_models::ModelError;
use waymark_models::embedder::Embedder;
use waymark_models::kernel::Team;

use super::file::{parts, with_folder};

/// The files in the order of the input.
const FILES: [&str; 9] = [
    "config.json",
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "config_sentence_transformers.json",
    "model.safetensors.index.json",
    "model.safetensors",
];

/// Bytes of tensors that zeros are put behind, at most.
const LONGEST: usize = 1 << 16;

pub fn run(data: &[u8]) {
    let Ok(embedder) = opened(data) else { return };
    let texts = ["a", "", "Who wrote Faust?"];
    let _ = texts.map(|text| embedder.count_tokens(text));
    let Ok(vectors) = embedder.embed(&texts) else { return };
    assert_eq!(vectors.len(), texts.len());
    assert!(vectors.iter().all(|vector| vector.len() == embedder.dims()));
    // A pass of one text may have no piece at all.
    for (text, vector) in texts.iter().zip(&vectors) {
        let alone = embedder.embed(&[text]).expect("it was embedded beside others");
        assert_eq!(alone[0].len(), embedder.dims());
        // Weights may be anything, and no NaN equals another.
        if vector.iter().all(|x| x.is_finite()) {
            assert_eq!(&alone[0], vector, "{text:?} alone");
        }
    }
}

/// The folder of an input, opened.
pub fn opened(data: &[u8]) -> Result<Embedder, ModelError> {
    let mut parts: [&[u8]; FILES.len()] = parts(data);
    let tensors = filled(parts[FILES.len() - 1]);
    parts[FILES.len() - 1] = &tensors;
    with_folder(|folder| {
        FILES.iter().zip(parts).for_each(|(name, bytes)| folder.place(name, bytes));
        Embedder::open(folder.path(), Arc::new(Team::new(1)))
    })
}

/// The tensors with as many zeros behind them as their header asks for.
fn filled(tensors: &[u8]) -> Vec<u8> {
    let mut tensors = tensors.to_vec();
    if let Some(length) = length(&tensors).filter(|length| (tensors.len()..=LONGEST).contains(length)) {
        tensors.resize(length, 0);
    }
    tensors
}

/// The length of a file of tensors after its header.
fn length(tensors: &[u8]) -> Option<usize> {
    let (size, rest) = tensors.split_first_chunk::<8>()?;
    let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
    let header: Value = serde_json::from_slice(rest.get(..size)?).ok()?;
    let ends = header.as_object()?.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    let data = usize::try_from(ends.max()?).ok()?;
    data.checked_add(size)?.checked_add(8)
}
