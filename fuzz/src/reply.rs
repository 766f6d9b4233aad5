//! A language model that replies the same to everything.

use waymark_index::{Complete, CompleteError, ModelMessage, ModelReply};

/// See the module.
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
