//! Reads the text that a page of a PDF file shows, in the order of its operations.

use std::collections::BTreeMap;

use lopdf::content::{Content, Operation};
use lopdf::{Dictionary, Document, Encoding, Object, ObjectId};

/// Movement within an array of strings, in thousandths of the font's size, that stands for a space between words.
const WORD_GAP: f32 = -180.0;

/// Share of the font's size by which the next line is lower, at least.
const LINE_GAP: f32 = 0.5;

/// Returns the text of a page. A font whose encoding is not understood loses its own text alone.
///
/// # Errors
/// If the page cannot be read, or its content is longer than `limit` bytes or than the `budget` for it and all later
/// pages, from which it is subtracted.
pub(super) fn read(document: &Document, page: ObjectId, limit: usize, budget: &mut usize) -> lopdf::Result<String> {
    let fonts: BTreeMap<Vec<u8>, &Dictionary> = document.get_page_fonts(page)?;
    let encodings: BTreeMap<&[u8], Encoding<'_>> = fonts
        .iter()
        .filter_map(|(name, font)| Some((name.as_slice(), font.get_font_encoding_with_limit(document, limit).ok()?)))
        .collect();
    let content = document.get_page_content_with_limit(page, limit.min(*budget))?;
    *budget = budget.saturating_sub(content.len());
    let content = Content::decode(&content)?;
    let mut shown = ShownText::default();
    for operation in content.operations {
        if operation.operator == "Tf" {
            let name = operation.operands.first().and_then(|name| name.as_name().ok());
            shown.encoding = name.and_then(|name| encodings.get(name));
            shown.size = number(&operation, 1).abs().max(1.0);
        } else {
            shown.apply(&operation);
        }
        if shown.text.len() > limit {
            break;
        }
    }
    Ok(shown.text)
}

/// Text shown so far, and the position of the next one.
#[derive(Default)]
struct ShownText<'a> {
    text: String,
    encoding: Option<&'a Encoding<'a>>,
    size: f32,
    /// Distance of the lines that `T*` moves by.
    leading: f32,
    /// Vertical position.
    y: f32,
    /// Vertical position of the last shown text.
    shown_y: f32,
    /// If `true`, the position was set since text was shown.
    moved: bool,
}

impl ShownText<'_> {
    fn apply(&mut self, operation: &Operation) {
        match operation.operator.as_str() {
            "BT" => self.move_to(0.0),
            "Td" => self.move_to(self.y + number(operation, 1)),
            "TD" => {
                self.leading = -number(operation, 1);
                self.move_to(self.y - self.leading);
            }
            "Tm" => self.move_to(number(operation, 5)),
            "TL" => self.leading = number(operation, 0),
            "T*" => self.next_line(),
            "Tj" | "TJ" => operation.operands.iter().for_each(|operand| self.show(operand)),
            // Both begin a line; the text is the last operand.
            "'" | "\"" => {
                self.next_line();
                operation.operands.last().into_iter().for_each(|operand| self.show(operand));
            }
            _ => {}
        }
    }

    fn move_to(&mut self, y: f32) {
        self.y = y;
        self.moved = true;
    }

    fn next_line(&mut self) {
        // A distance of 0 would keep the line, and is what files without `TL` have.
        self.move_to(self.y - self.leading.abs().max(self.size));
    }

    fn show(&mut self, operand: &Object) {
        match operand {
            Object::String(bytes, _) => self.write(bytes),
            Object::Array(parts) => {
                for part in parts {
                    match part {
                        Object::String(bytes, _) => self.write(bytes),
                        other if other.as_float().is_ok_and(|gap| gap < WORD_GAP) => self.space(' '),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        // Text in an unknown encoding would be nonsense.
        let Some(words) = self.encoding.and_then(|encoding| encoding.bytes_to_string(bytes).ok()) else { return };
        if std::mem::take(&mut self.moved) {
            let line = (self.y - self.shown_y).abs() > LINE_GAP * self.size;
            self.space(if line { '\n' } else { ' ' });
        }
        self.shown_y = self.y;
        self.text.push_str(&words);
    }

    fn space(&mut self, space: char) {
        let end = self.text.chars().next_back();
        if end.is_some_and(|end| !end.is_whitespace() || (space == '\n' && end != '\n')) {
            self.text.push(space);
        }
    }
}

fn number(operation: &Operation, at: usize) -> f32 {
    operation.operands.get(at).and_then(|operand| operand.as_float().ok()).unwrap_or_default()
}
