//! Reads the text that a page of a PDF file shows, in the order of its operations.

use std::rc::Rc;

use lopdf::content::{Content, Operation};
use lopdf::{DecompressError, Document, Encoding, Error, Object, ObjectId, Stream};

use super::LONGEST_RECORD;
use super::pdf_fonts::{FontEncodings, PageResources};
use super::pdf_forms::FormTexts;
use super::read_limits::ReadLimits;

/// Maximum bytes of the content of a page, decompressed, with that of the forms being drawn. Its operations take several
/// times as much memory.
const LARGEST_PAGE: usize = 16 << 20;

/// Maximum depth of forms within forms. Those that are deeper are left out.
const DEEPEST_FORM: usize = 16;

/// Number of bytes for which a stream in the content of a page counts besides its own. Pages may share one list of any
/// number of streams, which may be empty or missing.
const STREAM_BYTES: usize = 64;

/// Threshold for a movement within an array of strings, in thousandths of the font's size. A movement below it stands
/// for a space between words.
const WORD_GAP: f32 = -180.0;

/// Vertical distance beyond which text is on another line, as a share of the font's size.
const LINE_GAP: f32 = 0.5;

/// Reader of the pages of a document.
pub(super) struct PageReader<'d> {
    document: &'d Document,
    limits: &'d ReadLimits,
    fonts: FontEncodings<'d>,
    forms: FormTexts,
}

/// Content that is being read.
#[derive(Clone, Copy)]
struct ContentRoom {
    /// Number of forms around it.
    depth: usize,
    /// Maximum bytes of the forms that it draws.
    bytes: usize,
}

impl<'d> PageReader<'d> {
    pub(super) fn new(document: &'d Document, limits: &'d ReadLimits) -> Self {
        Self { document, limits, fonts: FontEncodings::new(document), forms: FormTexts::new() }
    }

    /// Returns the text of a page, without text in fonts whose encoding is not understood and in forms that are too
    /// large or too deep. Subtracts the length of the page's content from `budget`, the number of bytes left for this
    /// page and all later ones.
    ///
    /// # Errors
    /// The reason, if the page cannot be read, if its content is longer than `LARGEST_PAGE` or `budget`, or if the
    /// reading has to end.
    pub(super) fn page(&mut self, page: ObjectId, budget: &mut usize) -> Result<String, String> {
        let resources = self.fonts.of_page(page)?;
        let content = content(self.document, page, budget, self.limits)?;
        let room = ContentRoom { depth: 0, bytes: LARGEST_PAGE.saturating_sub(content.len()) };
        let content = Content::decode(&content).map_err(|error| error.to_string())?;
        self.text(content, &resources, room)
    }

    /// Returns the text that a content shows.
    fn text(&mut self, content: Content, resources: &PageResources<'d>, room: ContentRoom) -> Result<String, String> {
        let mut shown = ShownText::default();
        for operation in content.operations {
            let name = || operation.operands.first().and_then(|name| name.as_name().ok());
            match operation.operator.as_str() {
                "Tf" => {
                    self.check()?;
                    let encoding = name().map(|name| self.fonts.encoding(resources, name)).transpose()?;
                    shown.state.encoding = encoding.flatten();
                    shown.state.size = number(&operation, 1).abs().max(1.0);
                }
                "Do" => {
                    if let Some(form) = name().and_then(|name| resources.form(self.document, name)) {
                        let text = self.form(form, resources, room)?;
                        shown.block(&text);
                    }
                }
                _ => shown.apply(&operation),
            }
            // A code may stand for many characters, and a form may be drawn many times. The caller refuses a text of
            // this length.
            if shown.text.len() > LONGEST_RECORD {
                break;
            }
        }
        Ok(shown.text)
    }

    /// Returns the text of a form that some content with these resources draws. It is read once, because many pages may
    /// draw it.
    fn form(&mut self, form: &'d Stream, resources: &PageResources<'d>, room: ContentRoom) -> Result<Rc<str>, String> {
        if let Some(known) = self.forms.get(form) {
            return Ok(known);
        }
        self.check()?;
        self.forms.begin(form);
        let left = room.bytes.min(self.forms.contents_left);
        let content = decompressed(form, left).filter(|_| room.depth < DEEPEST_FORM);
        let Some(content) = content else { return self.forms.end(form, "") };
        self.forms.contents_left = self.forms.contents_left.saturating_sub(content.len());
        let inner = ContentRoom { depth: room.depth + 1, bytes: room.bytes.saturating_sub(content.len()) };
        // A page without a form says more than none.
        let Ok(content) = Content::decode(&content) else { return self.forms.end(form, "") };
        let own = PageResources::of_form(self.document, form);
        let text = self.text(content, own.as_ref().unwrap_or(resources), inner)?;
        self.forms.end(form, &text)
    }

    /// Checks that the reading goes on.
    fn check(&self) -> Result<(), String> {
        self.limits.check().map_err(|stop| stop.to_string())
    }
}

/// Returns the content of a page: its streams, decompressed and joined by line breaks. The library's own function ends at
/// no limit but the length.
///
/// # Errors
/// Those of [`PageReader::page`].
fn content(document: &Document, page: ObjectId, budget: &mut usize, limits: &ReadLimits) -> Result<Vec<u8>, String> {
    let too_long = || "its content is too long".to_owned();
    let mut content = Vec::new();
    for id in document.get_page_contents(page) {
        limits.check().map_err(|stop| stop.to_string())?;
        *budget = budget.checked_sub(STREAM_BYTES).ok_or_else(too_long)?;
        let Ok(stream) = document.get_object(id).and_then(Object::as_stream) else { continue };
        let left = LARGEST_PAGE.saturating_sub(content.len()).min(*budget);
        let data = decompressed(stream, left).ok_or_else(too_long)?;
        *budget = budget.saturating_sub(data.len());
        content.extend_from_slice(&data);
        content.push(b'\n');
    }
    Ok(content)
}

/// Returns the content of a stream, decompressed. `None` if it is longer than `most` bytes.
fn decompressed(stream: &Stream, most: usize) -> Option<Vec<u8>> {
    match stream.decompressed_content_with_limit(most) {
        Ok(data) => Some(data),
        Err(Error::Decompress(DecompressError::MemoryLimitExceeded { .. })) => None,
        // As in the library, a stream that cannot be decompressed is read as it is.
        Err(_) => Some(&stream.content).filter(|content| content.len() <= most).cloned(),
    }
}

/// Part of the graphics state that `q` saves and `Q` restores.
#[derive(Clone, Default)]
struct TextState<'d> {
    encoding: Option<Rc<Encoding<'d>>>,
    size: f32,
    /// Distance between lines, by which `T*` moves.
    leading: f32,
}

/// Text shown so far, and the position of the next text.
#[derive(Default)]
struct ShownText<'d> {
    text: String,
    state: TextState<'d>,
    /// States that `q` has saved. They take less memory than the operations.
    saved: Vec<TextState<'d>>,
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
            "q" => self.saved.push(self.state.clone()),
            "Q" => {
                if let Some(state) = self.saved.pop() {
                    self.state = state;
                }
            }
            "BT" => self.move_to(0.0),
            "Td" => self.move_to(self.y + number(operation, 1)),
            "TD" => {
                self.state.leading = -number(operation, 1);
                self.move_to(self.y - self.state.leading);
            }
            "Tm" => self.move_to(number(operation, 5)),
            "TL" => self.state.leading = number(operation, 0),
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

    /// Shows a text on lines of its own.
    fn block(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.space('\n');
        self.text.push_str(text);
        self.space('\n');
    }

    fn move_to(&mut self, y: f32) {
        self.y = y;
        self.moved = true;
    }

    fn next_line(&mut self) {
        // The distance is 0 in files without `TL`, which would keep the line.
        self.move_to(self.y - self.state.leading.abs().max(self.state.size));
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
        let words = self.state.encoding.as_ref().and_then(|encoding| encoding.bytes_to_string(bytes).ok());
        let Some(words) = words else { return };
        if std::mem::take(&mut self.moved) {
            let line = (self.y - self.shown_y).abs() > LINE_GAP * self.state.size;
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
    #![allow(clippy::unwrap_used)]
    use lopdf::{Dictionary, dictionary};

    use super::super::read_limits::tests::steps;
    use super::*;

    fn add_stream(document: &mut Document, dictionary: Dictionary, content: &str) -> ObjectId {
        document.add_object(Stream::new(dictionary, content.as_bytes().to_vec()))
    }

    /// Adds a form without resources of its own.
    fn add_form(document: &mut Document, content: &str) -> ObjectId {
        add_stream(document, dictionary! { "Type" => "XObject", "Subtype" => "Form" }, content)
    }

    /// Resources with the font `F1` and these objects.
    fn resources(document: &mut Document, objects: Dictionary) -> Dictionary {
        let font = document.add_object(dictionary! {
            "Type" => "Font", "Subtype" => "Type1", "BaseFont" => "Helvetica", "Encoding" => "WinAnsiEncoding",
        });
        dictionary! { "Font" => dictionary! { "F1" => font }, "XObject" => objects }
    }

    /// Text of a page with these resources.
    fn page_text(mut document: Document, resources: Dictionary, content: &str) -> String {
        let content = add_stream(&mut document, Dictionary::new(), content);
        let page = dictionary! { "Type" => "Page", "Contents" => content, "Resources" => resources };
        let page = document.add_object(page);
        let mut budget = LARGEST_PAGE;
        PageReader::new(&document, &ReadLimits::default()).page(page, &mut budget).unwrap()
    }

    #[test]
    fn text_in_forms_is_read() {
        let mut document = Document::with_version("1.5");
        let own = resources(&mut document, Dictionary::new());
        let form = dictionary! { "Type" => "XObject", "Subtype" => "Form", "Resources" => own };
        let form = add_stream(&mut document, form, "BT /F1 12 Tf (inside) Tj ET");
        let looped = add_form(&mut document, "BT /F1 12 Tf (loop) Tj ET /B Do");
        let image = dictionary! { "Type" => "XObject", "Subtype" => "Image" };
        let image = add_stream(&mut document, image, "BT /F1 12 Tf (image) Tj ET");
        let of_page = resources(&mut document, dictionary! { "A" => form, "B" => looped, "C" => image });
        let content = "BT /F1 12 Tf (before) Tj ET q 1 0 0 1 0 0 cm /A Do Q /B Do /C Do /D Do /A Do BT (behind) Tj ET";
        assert_eq!(page_text(document, of_page, content), "before\ninside\nloop\ninside\nbehind");
    }

    #[test]
    fn forms_within_forms_have_a_maximum_depth() {
        let mut document = Document::with_version("1.5");
        let mut objects = Dictionary::new();
        for number in 1..=DEEPEST_FORM + 1 {
            let content = format!("BT /F1 12 Tf ({number}) Tj ET /F{} Do", number + 1);
            objects.set(format!("F{number}"), add_form(&mut document, &content));
        }
        let of_page = resources(&mut document, objects);
        let text = page_text(document, of_page, "/F1 Do");
        assert_eq!(text.lines().last(), Some(DEEPEST_FORM.to_string().as_str()), "{text}");
    }

    #[test]
    fn the_font_before_a_saved_state_is_restored() {
        let mut document = Document::with_version("1.5");
        let of_page = resources(&mut document, Dictionary::new());
        let content = "Q BT /F1 12 Tf (a) Tj ET q BT /Unknown 12 Tf (b) Tj ET Q BT (c) Tj ET";
        assert_eq!(page_text(document, of_page, content), "a c");
    }

    #[test]
    fn a_list_of_missing_contents_counts() {
        let mut document = Document::with_version("1.5");
        let contents = (0..100).map(|_| Object::Reference((999, 0))).collect();
        let page = document.add_object(dictionary! { "Type" => "Page", "Contents" => Object::Array(contents) });
        let read = |budget: &mut usize, limits: &ReadLimits| PageReader::new(&document, limits).page(page, budget);
        let mut budget = 150 * STREAM_BYTES;
        assert_eq!(read(&mut budget, &ReadLimits::default()), Ok(String::new()));
        assert_eq!(budget, 50 * STREAM_BYTES);
        assert!(read(&mut budget, &ReadLimits::default()).is_err_and(|error| error.contains("too long")));
        let (limits, _) = steps(99);
        assert!(read(&mut (150 * STREAM_BYTES), &limits).is_err_and(|error| error.contains("was ended")));
    }
}
