//! Control tokens that a GGUF file declares as text.
//!
//! The type of a token in a GGUF is a converter's work. The first Gemma 3 files of Google declare the tags of turns as
//! ordinary text, and many ChatML fine-tunes declare theirs as user-defined. llama.cpp corrects the end tokens in the
//! same way (`llama-vocab.cpp`), and leaves those that open a turn.

use crate::weights::Gguf;

/// End-of-turn tokens of all known model families. A checkpoint names one or two of them, but its model may emit
/// any.
pub(crate) const END_TOKENS: [&str; 8] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<eos>"];

/// Tokens around the role that a turn begins with.
const OPENING_TOKENS: [&str; 4] = ["<start_of_turn>", "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>"];

/// Roles for which a file may name a token.
const ROLES: [&str; 4] = ["bos", "eos", "eot", "eom"];

/// Token types of the GGUF specification.
const NORMAL: u64 = 1;
pub(super) const CONTROL: u64 = 3;
pub(super) const USER_DEFINED: u64 = 4;

/// Tokens that control the model according to the metadata of a file, whatever their types are.
pub(super) struct ControlTokens {
    /// IDs of the tokens with a role.
    named: Vec<u64>,
}

impl ControlTokens {
    pub(super) fn new(gguf: &Gguf) -> Self {
        let id = |role: &&str| gguf.number(&format!("tokenizer.ggml.{role}_token_id"));
        Self { named: ROLES.iter().filter_map(id).collect() }
    }

    /// Returns the type of the token `id`, which the file states as `kind`: [`CONTROL`] for text that is a tag of turns,
    /// or a tag with a role.
    pub(super) fn kind(&self, id: u64, token: &str, kind: Option<u64>) -> Option<u64> {
        if !matches!(kind, None | Some(NORMAL | USER_DEFINED)) {
            return kind;
        }
        // Some files name an ordinary word, such as a comma, where their model has no BOS.
        let has_role = || is_tag(token) && self.named.contains(&id);
        let is_known = END_TOKENS.contains(&token) || OPENING_TOKENS.contains(&token);
        if is_known || has_role() { Some(CONTROL) } else { kind }
    }
}

fn is_tag(token: &str) -> bool {
    token.starts_with('<') && token.ends_with('>')
}
