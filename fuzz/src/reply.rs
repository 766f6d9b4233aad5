//! A language model that replies the same to everything.

use waymark_index::{Complete, CompleteError, Completion, Message};

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

    fn complete(&self, _: &[Message], _: u32) -> Result<Completion, CompleteError> {
        Ok(Completion { text: self.text.clone(), cut: self.cut })
    }
}
