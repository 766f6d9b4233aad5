//! Marks that travel through a template with the contents of messages.

use sha2::{Digest, Sha256};

use super::{Message, Segment};

/// Two strings that occur in no message: derived from the messages themselves, so rendering stays a function of its
/// input, and from enough digits that no message can hold its own marks but by breaking SHA-256.
#[derive(Debug)]
pub(super) struct Marks {
    open: String,
    close: String,
}

impl Marks {
    pub(super) fn avoiding(messages: &[Message]) -> Self {
        let mut hash = Sha256::new();
        for message in messages {
            hash.update(message.content.len().to_le_bytes());
            hash.update(&message.content);
        }
        // Digits between private-use characters: case filters and trimming leave them alone.
        let digits: String = hash.finalize().iter().map(|byte| format!("{byte:03}")).collect();
        Self { open: format!("\u{f8f0}{digits}\u{f8f1}"), close: format!("\u{f8f2}{digits}\u{f8f3}") }
    }

    /// The messages with each content between marks. White space at its ends stays outside, so that a template can
    /// still trim it.
    pub(super) fn around(&self, messages: &[Message]) -> Vec<Message> {
        let wrap = |message: &Message| {
            let content = message.content.as_str();
            let core = content.trim();
            if core.is_empty() {
                return message.clone();
            }
            let lead = &content[..content.len() - content.trim_start().len()];
            let tail = &content[content.trim_end().len()..];
            Message::new(message.role.clone(), [lead, &self.open, core, &self.close, tail].concat())
        };
        messages.iter().map(wrap).collect()
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

    /// The messages with a mark inside every control token that a content spells, after its first character.
    pub(super) fn inside(&self, messages: &[Message], control: &[String]) -> Vec<Message> {
        let fence = |message: &Message| {
            let text = message.content.as_str();
            let mut content = String::with_capacity(text.len());
            for (at, c) in text.char_indices() {
                content.push(c);
                let rest = &text[at..];
                if rest.starts_with("<|") || control.iter().any(|name| rest.starts_with(name.as_str())) {
                    content.push_str(&self.open);
                }
            }
            Message::new(message.role.clone(), content)
        };
        messages.iter().map(fence).collect()
    }

    /// Cuts a text at the marks inside control tokens.
    pub(super) fn cut(&self, text: &str) -> Vec<Segment> {
        text.split(&self.open).map(|part| Segment { text: part.to_owned(), trusted: true }).collect()
    }
}
