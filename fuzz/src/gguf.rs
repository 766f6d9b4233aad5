//! GGUF files: any bytes either open or are refused, and their decoder either loads or is refused.
//!
//! Input: the file.

use std::sync::Arc;

use waymark_models::checkpoint::Checkpoint;
use waymark_models::decoder::Decoder;
use waymark_models::kernel::Team;
use waymark_models::tokenizer::Specials;
use waymark_models::weights::{Gguf, Weights};

use super::file::with_folder;

const TENSORS: [&str; 3] = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"];

pub fn run(data: &[u8]) {
    with_folder(|folder| {
        let path = folder.write("fuzz.gguf", data);
        let Ok(gguf) = Gguf::open(&path) else { return };
        let _ = (gguf.architecture(), gguf.config());
        let _ =
            (gguf.text("tokenizer.chat_template"), gguf.number("general.alignment"), gguf.float("general.alignment"));
        let _ = (gguf.texts("tokenizer.ggml.tokens"), gguf.numbers("tokenizer.ggml.token_type").map(Iterator::count));
        for name in TENSORS {
            let _ = gguf.tensor(name);
        }
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            let ids = checkpoint.tokenizer.encode("any <|im_end|> text", Specials::Literal);
            let _ = ids.map(|ids| checkpoint.tokenizer.decode(&ids));
        }
        if let Ok(weights) = Weights::open(&path) {
            let _ = Decoder::load(&weights, Arc::new(Team::new(1)));
        }
    });
}
