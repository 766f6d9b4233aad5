//! Marks that travel through a template with what comes from outside.

use std::cell::RefCell;

use sha2::{Digest, Sha256};

use super::Segment;
use super::tool::Said;

/// Two strings that occur in nothing that is said: derived from all of that itself, so rendering stays a function of its
/// input, and from enough digits that no message can hold its own marks but by breaking SHA-256.
#[derive(Debug)]
pub(super) struct Marks {
    open: String,
    close: String,
}

impl Marks {
    pub(super) fn avoiding(said: Said<'_>) -> Self {
        let hash = RefCell::new(Sha256::new());
        said.values(&|text| {
            let mut hash = hash.borrow_mut();
            hash.update(text.len().to_le_bytes());
            hash.update(text);
            String::new()
        });
        // Digits between private-use characters: case filters and trimming leave them alone.
        let digits: String = hash.into_inner().finalize().iter().map(|byte| format!("{byte:03}")).collect();
        Self { open: format!("\u{f8f0}{digits}\u{f8f1}"), close: format!("\u{f8f2}{digits}\u{f8f3}") }
    }

    /// A text between marks. White space at its ends stays outside, so that a template can still trim it.
    pub(super) fn around(&self, text: &str) -> String {
        let core = text.trim();
        if core.is_empty() {
            return text.to_owned();
        }
        let lead = &text[..text.len() - text.trim_start().len()];
        let tail = &text[text.trim_end().len()..];
        [lead, &self.open, core, &self.close, tail].concat()
    }

    /// Finds the contents again. None when the marks do not come in pairs any more.
    pub(super) fn split(&self, text: &str) -> Option<Vec<Segment>> {
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(&self.open) {
            let (content, after) = after.split_once(&self.close)?;
            if before.contains(&self.close) || content.contains(&self.open) {
                return None;
            }
            segments.push(Segment { text: before.to_owned(), trusted: true });
            segments.push(Segment { text: content.to_owned(), trusted: false });
            rest = after;
        }
        if rest.contains(&self.close) {
            return None;
        }
        segments.push(Segment { text: rest.to_owned(), trusted: true });
        segments.retain(|segment| !segment.text.is_empty());
        Some(segments)
    }

    /// A text with a mark inside every control token that it spells, after its first character.
    pub(super) fn inside(&self, text: &str, control: &[String]) -> String {
        let mut fenced = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            fenced.push(c);
            let rest = &text[at..];
            if rest.starts_with("<|") || control.iter().any(|name| rest.starts_with(name.as_str())) {
                fenced.push_str(&self.open);
            }
        }
        fenced
    }

    /// Cuts a text at the marks inside control tokens.
    pub(super) fn cut(&self, text: &str) -> Vec<Segment> {
        text.split(&self.open).map(|part| Segment { text: part.to_owned(), trusted: true }).collect()
    }
}
