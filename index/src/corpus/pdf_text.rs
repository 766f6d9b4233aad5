//! Reads the text that a page of a PDF file shows, in the order of its operations.

use std::rc::Rc;

use lopdf::content::{Content, Operation};
use lopdf::{Document, Encoding, Object, ObjectId};

use super::LONGEST_RECORD;
use super::pdf_fonts::FontEncodings;

/// Maximum bytes of the content of a page, decompressed. Its operations take several times as much memory.
const LARGEST_PAGE: usize = 16 << 20;

/// Threshold for a movement within an array of strings, in thousandths of the font's size. A movement below it stands
/// for a space between words.
const WORD_GAP: f32 = -180.0;

/// Vertical distance beyond which text is on another line, as a share of the font's size.
const LINE_GAP: f32 = 0.5;

/// Returns the text of a page, without text in fonts whose encoding is not understood. Subtracts the length of the
/// page's content from `budget`, the number of bytes left for this page and all later ones.
///
/// # Errors
/// The reason, if the page cannot be read, or if its content is longer than `LARGEST_PAGE` or `budget`.
pub(super) fn read(
    document: &Document,
    fonts: &mut FontEncodings<'_>,
    page: ObjectId,
    budget: &mut usize,
) -> Result<String, String> {
    let encodings = fonts.of_page(page)?;
    let limit = LARGEST_PAGE.min(*budget);
    let content = document.get_page_content_with_limit(page, limit).map_err(|error| error.to_string())?;
    *budget = budget.saturating_sub(content.len());
    let content = Content::decode(&content).map_err(|error| error.to_string())?;
    let mut shown = ShownText::default();
    for operation in content.operations {
        if operation.operator == "Tf" {
            let name = operation.operands.first().and_then(|name| name.as_name().ok());
            shown.encoding = name.and_then(|name| encodings.get(name)).map(Rc::as_ref);
            shown.size = number(&operation, 1).abs().max(1.0);
        } else {
            shown.apply(&operation);
        }
        // A code may stand for many characters. The caller refuses a text of this length.
        if shown.text.len() > LONGEST_RECORD {
            break;
        }
    }
    Ok(shown.text)
}

/// Text shown so far, and the position of the next text.
#[derive(Default)]
struct ShownText<'a> {
    text: String,
    encoding: Option<&'a Encoding<'a>>,
    size: f32,
    /// Distance between lines, by which `T*` moves.
    leading: f32,
    /// Vertical position.
    y: f32,
    /// Vertical position of the last shown text.
    shown_y: f32,
    /// If `true`, the position was set since text was last shown.
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
        // The distance is 0 in files without `TL`, which would keep the line.
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
