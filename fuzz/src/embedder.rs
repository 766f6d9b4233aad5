//! Folders of embedders as they are pulled: any contents either embed or are refused.
//!
//! Input: `config.json`, `tokenizer.json`, `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json`,
//! `tokenizer_config.json`, `config_sentence_transformers.json`, `model.safetensors.index.json` and
//! `model.safetensors`, a zero byte between each two. An empty part is a missing file. Zeros are appended to the
//! tensors up to the length that their header requires, so that a header alone is enough. Beside an index they are in
//! `model-00001-of-00001.safetensors`, because a single file comes before an index.

use std::sync::Arc;

use serde_json::Value;
use waymark_models::ModelError;
use waymark_models::embedder::Embedder;
use waymark_models::kernel::Team;

use super::file::{parts, with_folder};

/// The files in the order of the input, before the tensors.
const FILES: [&str; 8] = [
    "config.json",
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
    "config_sentence_transformers.json",
    "model.safetensors.index.json",
];

/// Maximum length of a file of tensors after zeros are appended, in bytes.
const LONGEST: usize = 1 << 16;

pub fn run(data: &[u8]) {
    let Ok(embedder) = opened(data) else { return };
    let texts = ["a", "", "Who wrote Faust?"];
    let _ = texts.map(|text| embedder.count_tokens(text));
    let Ok(vectors) = embedder.embed(&texts) else { return };
    assert_eq!(vectors.len(), texts.len());
    assert!(vectors.iter().all(|vector| vector.len() == embedder.dims()));
    // A batch of one text, such as the empty one, may have no token at all.
    for (text, vector) in texts.iter().zip(&vectors) {
        let alone = embedder.embed(&[text]).expect("it was embedded beside others");
        assert_eq!(alone[0].len(), embedder.dims());
        // Weights may be any numbers, and NaN does not equal NaN.
        if vector.iter().all(|x| x.is_finite()) {
            assert_eq!(&alone[0], vector, "{text:?} alone");
        }
    }
}

/// Writes an input into a folder and opens it.
pub fn opened(data: &[u8]) -> Result<Embedder, ModelError> {
    let parts: [&[u8]; FILES.len() + 1] = parts(data);
    let tensors = filled(parts[FILES.len()]);
    with_folder(|folder| {
        FILES.iter().zip(parts).for_each(|(name, bytes)| folder.place(name, bytes));
        folder.place_tensors(&tensors, parts[FILES.len() - 1]);
        Embedder::open(folder.path(), Arc::new(Team::new(1)))
    })
}

/// Appends the zeros that the header of the tensors requires.
fn filled(tensors: &[u8]) -> Vec<u8> {
    let mut tensors = tensors.to_vec();
    if let Some(length) = length(&tensors).filter(|length| (tensors.len()..=LONGEST).contains(length)) {
        tensors.resize(length, 0);
    }
    tensors
}

/// Length of a file of tensors according to its header, in bytes.
fn length(tensors: &[u8]) -> Option<usize> {
    let (size, rest) = tensors.split_first_chunk::<8>()?;
    let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
    let header: Value = serde_json::from_slice(rest.get(..size)?).ok()?;
    let ends = header.as_object()?.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    let data = usize::try_from(ends.max()?).ok()?;
    data.checked_add(size)?.checked_add(8)
}
