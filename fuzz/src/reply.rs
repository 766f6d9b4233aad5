//! A language model that replies the same to every prompt.

use waymark_index::{Complete, CompleteError, ModelMessage, ModelReply};

/// Language model that replies with `text` to every prompt.
#[derive(Debug)]
pub(super) struct Parrot {
    pub(super) text: String,
    pub(super) cut: bool,
}

impl Complete for Parrot {
    fn model(&self) -> &str {
        "parrot"
    }

    fn complete(&self, _: &[ModelMessage], _: u32) -> Result<ModelReply, CompleteError> {
        Ok(ModelReply { text: self.text.clone(), cut: self.cut })
    }
}
