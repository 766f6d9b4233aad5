//! Reads the text that a page of a PDF file shows, in the order of its operations.

use std::rc::Rc;

use lopdf::content::{Content, Operation};
use lopdf::{DecompressError, Document, Encoding, Error, Object, ObjectId};

use super::LONGEST_RECORD;
use super::pdf_fonts::FontEncodings;
use super::read_limits::ReadLimits;

/// Maximum bytes of the content of a page, decompressed. Its operations take several times as much memory.
const LARGEST_PAGE: usize = 16 << 20;

/// Number of bytes for which a stream in the content of a page counts besides its own. Pages may share one list of any
/// number of streams, which may be empty or missing.
const STREAM_BYTES: usize = 64;

/// Threshold for a movement within an array of strings, in thousandths of the font's size. A movement below it stands
/// for a space between words.
const WORD_GAP: f32 = -180.0;

/// Vertical distance beyond which text is on another line, as a share of the font's size.
const LINE_GAP: f32 = 0.5;

/// Returns the text of a page, without text in fonts whose encoding is not understood. Subtracts the length of the
/// page's content from `budget`, the number of bytes left for this page and all later ones.
///
/// # Errors
/// The reason, if the page cannot be read, if its content is longer than `LARGEST_PAGE` or `budget`, or if the reading
/// has to end.
pub(super) fn read<'d>(
    document: &'d Document,
    fonts: &mut FontEncodings<'d>,
    page: ObjectId,
    budget: &mut usize,
    limits: &ReadLimits,
) -> Result<String, String> {
    let own_fonts = fonts.of_page(page)?;
    let content = content(document, page, budget, limits)?;
    let content = Content::decode(&content).map_err(|error| error.to_string())?;
    let mut shown = ShownText::default();
    for operation in content.operations {
        if operation.operator == "Tf" {
            limits.check().map_err(|stop| stop.to_string())?;
            let name = operation.operands.first().and_then(|name| name.as_name().ok());
            shown.encoding = name.map(|name| fonts.encoding(&own_fonts, name)).transpose()?.flatten();
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

/// Returns the content of a page: its streams, decompressed and joined by line breaks. The library's own function ends at
/// no limit but the length.
///
/// # Errors
/// Those of [`read`].
fn content(document: &Document, page: ObjectId, budget: &mut usize, limits: &ReadLimits) -> Result<Vec<u8>, String> {
    let too_long = || "its content is too long".to_owned();
    let mut content = Vec::new();
    for id in document.get_page_contents(page) {
        limits.check().map_err(|stop| stop.to_string())?;
        *budget = budget.checked_sub(STREAM_BYTES).ok_or_else(too_long)?;
        let Ok(stream) = document.get_object(id).and_then(Object::as_stream) else { continue };
        let left = LARGEST_PAGE.saturating_sub(content.len()).min(*budget);
        let before = content.len();
        match stream.decompressed_content_with_limit(left) {
            Ok(data) => content.extend_from_slice(&data),
            Err(Error::Decompress(DecompressError::MemoryLimitExceeded { .. })) => return Err(too_long()),
            // As in the library, a stream that cannot be decompressed is read as it is.
            Err(_) if stream.content.len() <= left => content.extend_from_slice(&stream.content),
            Err(_) => return Err(too_long()),
        }
        *budget = budget.saturating_sub(content.len() - before);
        content.push(b'\n');
    }
    Ok(content)
}

/// Text shown so far, and the position of the next text.
#[derive(Default)]
struct ShownText<'d> {
    text: String,
    encoding: Option<Rc<Encoding<'d>>>,
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
        let words = self.encoding.as_ref().and_then(|encoding| encoding.bytes_to_string(bytes).ok());
        let Some(words) = words else { return };
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

#[cfg(test)]
mod tests {
    use lopdf::dictionary;

    use super::super::read_limits::tests::steps;
    use super::*;

    #[test]
    fn a_list_of_missing_contents_counts() {
        let mut document = Document::with_version("1.5");
        let contents = (0..100).map(|_| Object::Reference((999, 0))).collect();
        let page = document.add_object(dictionary! { "Type" => "Page", "Contents" => Object::Array(contents) });
        let read = |budget: &mut usize, limits: &ReadLimits| {
            super::read(&document, &mut FontEncodings::new(&document), page, budget, limits)
        };
        let mut budget = 150 * STREAM_BYTES;
        assert_eq!(read(&mut budget, &ReadLimits::default()), Ok(String::new()));
        assert_eq!(budget, 50 * STREAM_BYTES);
        assert!(read(&mut budget, &ReadLimits::default()).is_err_and(|error| error.contains("too long")));
        let (limits, _) = steps(99);
        assert!(read(&mut (150 * STREAM_BYTES), &limits).is_err_and(|error| error.contains("was ended")));
    }
}
