//! Marks that delimit untrusted text while it passes through a template.

use std::cell::RefCell;
use std::collections::HashSet;

use sha2::{Digest, Sha256};

use super::TextSegment;
use super::tool::TemplateInput;

/// Two marker strings that occur nowhere in the conversation. Both are derived from a SHA-256 of the whole
/// conversation, so rendering stays deterministic and no message can contain its own marks.
#[derive(Debug)]
pub(super) struct ContentMarks {
    open: String,
    close: String,
}

impl ContentMarks {
    pub(super) fn avoiding(input: TemplateInput<'_>) -> Self {
        let hash = RefCell::new(Sha256::new());
        input.values(&|text| {
            let mut hash = hash.borrow_mut();
            // The length prefix distinguishes conversations that cut the same text at different places.
            hash.update(text.len().to_le_bytes());
            hash.update(text);
            String::new()
        });
        // Digits between private-use characters survive case filters and trimming.
        let digits: String = hash.into_inner().finalize().iter().map(|byte| format!("{byte:03}")).collect();
        Self { open: format!("\u{f8f0}{digits}\u{f8f1}"), close: format!("\u{f8f2}{digits}\u{f8f3}") }
    }

    /// Wraps a text in marks. White space at its ends stays outside, so a template can still trim it.
    pub(super) fn around(&self, text: &str) -> String {
        let core = text.trim();
        if core.is_empty() {
            return text.to_owned();
        }
        let lead = &text[..text.len() - text.trim_start().len()];
        let tail = &text[text.trim_end().len()..];
        [lead, &self.open, core, &self.close, tail].concat()
    }

    /// Splits a rendered text into template text and marked contents. Returns `None` when the marks no longer come
    /// in pairs.
    pub(super) fn split(&self, text: &str) -> Option<Vec<TextSegment>> {
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(&self.open) {
            let (content, after) = after.split_once(&self.close)?;
            if before.contains(&self.close) || content.contains(&self.open) {
                return None;
            }
            segments.push(TextSegment { text: before.to_owned(), trusted: true });
            segments.push(TextSegment { text: content.to_owned(), trusted: false });
            rest = after;
        }
        if rest.contains(&self.close) {
            return None;
        }
        segments.push(TextSegment { text: rest.to_owned(), trusted: true });
        segments.retain(|segment| !segment.text.is_empty());
        Some(segments)
    }

    /// Inserts a mark into every token of these names spelled in `text`, after the token's first character.
    pub(super) fn inside(&self, text: &str, names: &[&str]) -> String {
        // A vocabulary may have thousands of names, nearly all of which begin alike.
        let firsts: HashSet<char> = names.iter().filter_map(|name| name.chars().next()).collect();
        let mut fenced = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            fenced.push(c);
            let rest = &text[at..];
            let is_named = || names.iter().any(|name| !name.is_empty() && rest.starts_with(name));
            if rest.starts_with("<|") || (firsts.contains(&c) && is_named()) {
                fenced.push_str(&self.open);
            }
        }
        fenced
    }

    /// Cuts a text at the marks inserted by [`inside`](Self::inside).
    pub(super) fn cut(&self, text: &str) -> Vec<TextSegment> {
        text.split(&self.open).map(|part| TextSegment { text: part.to_owned(), trusted: true }).collect()
    }
}
