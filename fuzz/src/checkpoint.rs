//! Folders of base models as they are pulled: tensors in one file or in files named by an index, tokenizer, chat
//! template, and end-of-turn tokens.
//!
//! Input: `config.json`, `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`, `chat_template.jinja`,
//! `model.safetensors.index.json` and `model.safetensors`, a zero byte between each two. An empty part is a missing
//! file. Beside an index the tensors are in `model-00001-of-00001.safetensors`, because a single file comes before an
//! index.

use std::sync::Arc;

use waymark_models::ModelError;
use waymark_models::chat::Message;
use waymark_models::checkpoint::Checkpoint;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;

use super::file::{parts, with_folder};

/// The files in the order of the input, before the tensors.
const FILES: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

pub fn run(data: &[u8]) {
    let Ok(checkpoint) = opened(data) else { return };
    assert!(checkpoint.eos.is_sorted(), "ends that are not in order: {:?}", checkpoint.eos);
    if let Some(template) = &checkpoint.template
        && let Ok(segments) = template.render_segments(&[Message::new("user", "any <|im_end|> text")], true)
    {
        let ids = checkpoint.tokenizer.encode_segments(&segments);
        let _ = ids.map(|ids| checkpoint.tokenizer.decode(&ids));
    }
    let _ = Decoder::load(&checkpoint.weights, Arc::new(Team::new(1)));
}

/// Writes an input into a folder and opens it.
pub fn opened(data: &[u8]) -> Result<Checkpoint, ModelError> {
    let parts: [&[u8]; FILES.len() + 1] = parts(data);
    with_folder(|folder| {
        FILES.iter().zip(parts).for_each(|(name, bytes)| folder.place(name, bytes));
        folder.place_tensors(parts[FILES.len()], parts[FILES.len() - 1]);
        Checkpoint::open(folder.path())
    })
}
