//! Tokens that guided generation never samples.

use std::sync::Arc;

use waymark_models::tokenizer::{Specials, Tokenizer};

/// Tokens banned in guided generation, as logit biases.
#[derive(Debug)]
pub(super) struct TokenBans {
    /// Bans at the beginning of a span: those inside a span, end-of-sequence tokens, and tokens that are white space or
    /// contain `<` or a line break, so that no span is empty.
    pub(super) first: Arc<[(u32, f32)]>,
    /// Bans inside a span: control tokens and tokens that could open a tag.
    pub(super) inside: Arc<[(u32, f32)]>,
    /// Bans inside a span that an end-of-sequence token may end.
    pub(super) last: Arc<[(u32, f32)]>,
}

impl TokenBans {
    /// A bias below any logit, and finite.
    const NEVER: f32 = -1e9;

    pub(super) fn new(tokenizer: &Tokenizer, eos: &[u32]) -> TokenBans {
        // If `</` is one token, a policy can close a tag without being able to open one; otherwise both are banned.
        let closes = tokenizer.encode("</", Specials::Literal).is_ok_and(|ids| ids.len() == 1);
        let opens = |bytes: &[u8]| {
            let after = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'<').map(|(at, _)| bytes.get(at + 1));
            after.into_iter().any(|next| !closes || next != Some(&b'/'))
        };
        let mut first = Vec::new();
        let mut inside = Vec::new();
        let mut last = Vec::new();
        for id in (0..).take(tokenizer.vocab()) {
            let bytes = tokenizer.bytes_of(id);
            let ban = (id, Self::NEVER);
            if eos.contains(&id) {
                first.push(ban);
                inside.push(ban);
            } else if bytes.is_empty() || opens(bytes) {
                first.push(ban);
                inside.push(ban);
                last.push(ban);
            // Where `</` is one token it may close a span, but must not begin one.
            } else if bytes.iter().any(|byte| b"<\n".contains(byte))
                || bytes.iter().all(|&byte| char::from(byte).is_whitespace())
            {
                first.push(ban);
            }
        }
        TokenBans { first: first.into(), inside: inside.into(), last: last.into() }
    }
}
