//! Encodings of the fonts of a PDF file, and the resources in which pages and forms name them.

use std::collections::HashMap;
use std::rc::Rc;

use lopdf::{Dictionary, Document, Encoding, Object, ObjectId, Stream};

/// Maximum bytes of the table of a font that maps its codes to text (`ToUnicode`), decompressed.
const LARGEST_TABLE: usize = 1 << 20;

/// Maximum number of codes of three or four bytes in a table. A range of a few bytes may hold 2³² of them, and the
/// library lists them all. There are at most 65,792 shorter codes.
const MOST_WIDE_CODES: u64 = 1 << 18;

/// Approximate memory of a code in the library's map, in bytes.
const CODE_BYTES: usize = 64;

/// Approximate memory of an entry that replaces a character of an encoding (`Differences`), in bytes.
const DIFFERENCE_BYTES: usize = 32;

/// Maximum bytes of the encodings of a file.
const LARGEST_ENCODINGS: usize = 256 << 20;

/// Encodings of fonts that pages have used so far. Pages share fonts, so each is decoded once.
pub(super) struct FontEncodings<'d> {
    document: &'d Document,
    /// Encodings by the dictionary of the font. `None` for those that are not understood.
    known: HashMap<*const Dictionary, Option<Rc<Encoding<'d>>>>,
    /// Bytes left for further encodings.
    left: usize,
}

impl<'d> FontEncodings<'d> {
    pub(super) fn new(document: &'d Document) -> Self {
        Self { document, known: HashMap::new(), left: LARGEST_ENCODINGS }
    }

    /// Returns the resources of a page.
    ///
    /// # Errors
    /// If the resources of the page cannot be read.
    pub(super) fn of_page(&self, page: ObjectId) -> Result<PageResources<'d>, String> {
        let document: &'d Document = self.document;
        let (own, shared) = document.get_page_resources(page).map_err(|error| error.to_string())?;
        let shared = shared.into_iter().filter_map(|id| document.get_dictionary(id).ok());
        Ok(PageResources(own.into_iter().chain(shared).collect()))
    }

    /// Returns the encoding of the font `name` in some resources. `None` if there is no such font, or its encoding is not
    /// understood.
    ///
    /// # Errors
    /// If the encodings of the file are too large.
    pub(super) fn encoding(
        &mut self,
        resources: &PageResources<'d>,
        name: &[u8],
    ) -> Result<Option<Rc<Encoding<'d>>>, String> {
        let document: &'d Document = self.document;
        let named = |resources| dictionary(document, dictionary(document, resources, b"Font")?, name);
        let Some(font) = resources.0.iter().copied().find_map(named) else {
            return Ok(None);
        };
        match self.known.get(&std::ptr::from_ref(font)) {
            Some(known) => Ok(known.clone()),
            None => self.learn(font),
        }
    }

    /// Decodes the encoding of a font.
    fn learn(&mut self, font: &'d Dictionary) -> Result<Option<Rc<Encoding<'d>>>, String> {
        let table = font.get_deref(b"ToUnicode", self.document).and_then(Object::as_stream);
        let table = table.and_then(|stream| stream.get_plain_content_with_limit(LARGEST_TABLE)).unwrap_or_default();
        let encoding = match wide_codes(&table) > MOST_WIDE_CODES {
            true => None,
            false => font.get_font_encoding_with_limit(self.document, LARGEST_TABLE).ok().map(Rc::new),
        };
        let codes = encoding.as_deref().map_or(0, codes);
        self.left = self
            .left
            .checked_sub(table.len() + codes * CODE_BYTES + self.differences(font) * DIFFERENCE_BYTES)
            .ok_or_else(|| format!("the encodings of the fonts take more than {LARGEST_ENCODINGS} bytes"))?;
        self.known.insert(font, encoding.clone());
        Ok(encoding)
    }

    /// Number of entries with which a font changes an encoding. Fonts may share them, and each gets a copy.
    fn differences(&self, font: &Dictionary) -> usize {
        let encoding = font.get_deref(b"Encoding", self.document).and_then(Object::as_dict);
        let differences = encoding.and_then(|encoding| encoding.get(b"Differences")).and_then(Object::as_array);
        differences.map_or(0, Vec::len)
    }
}

/// Resources of a page or form, nearest first: its own, and those of its ancestors in the page tree. Fonts are looked
/// up only where text is shown in them, because pages may share any number of fonts.
pub(super) struct PageResources<'d>(Vec<&'d Dictionary>);

impl<'d> PageResources<'d> {
    /// Returns the resources of a form. `None` if it has none of its own.
    pub(super) fn of_form(document: &'d Document, form: &'d Stream) -> Option<Self> {
        Some(Self(vec![dictionary(document, &form.dict, b"Resources")?]))
    }

    /// Returns the form `name`. `None` if there is no such object, or it is an image.
    pub(super) fn form(&self, document: &'d Document, name: &[u8]) -> Option<&'d Stream> {
        let mut objects = self.0.iter().copied().filter_map(|resources| dictionary(document, resources, b"XObject"));
        let object = objects.find_map(|objects| objects.get_deref(name, document).ok())?;
        let stream = object.as_stream().ok()?;
        let subtype = stream.dict.get(b"Subtype").and_then(Object::as_name);
        subtype.is_ok_and(|subtype| subtype == b"Form").then_some(stream)
    }
}

/// Returns the dictionary `name` in another one, which may hold a reference to it.
fn dictionary<'d>(document: &'d Document, within: &'d Dictionary, name: &[u8]) -> Option<&'d Dictionary> {
    match within.get(name).ok()? {
        Object::Reference(id) => document.get_dictionary(*id).ok(),
        Object::Dictionary(found) => Some(found),
        _ => None,
    }
}

/// Number of codes that an encoding maps by a table of its own.
fn codes(encoding: &Encoding<'_>) -> usize {
    let Encoding::UnicodeMapEncoding(map) = encoding else { return 0 };
    let ranges = map.bf_ranges.iter().flat_map(|ranges| ranges.iter());
    ranges.map(|(codes, _)| (codes.end() - codes.start()) as usize + 1).sum()
}

/// Number of codes of three or four bytes in the ranges of a table, or more: a code followed by a target may count as a
/// range.
///
/// A range is `<first> <last> <target>` or `<first> <last> [<target> …]`, with nothing but spaces and tabs between its
/// codes.
fn wide_codes(table: &[u8]) -> u64 {
    let mut codes: u64 = 0;
    // Code that stands directly before the next one.
    let mut before: Option<(usize, u64)> = None;
    let mut in_targets = false;
    for token in table.split(|byte| *byte == b'<').skip(1) {
        let (hex, gap) = match token.iter().position(|byte| *byte == b'>') {
            Some(end) => (&token[..end], blank_trimmed(&token[end + 1..])),
            None => (token, &b"?"[..]),
        };
        let code = wide_code(hex);
        let is_range = !in_targets && (gap.is_empty() || gap.starts_with(b"["));
        if let (Some((length, first)), Some((other, last)), true) = (before, code, is_range)
            && length == other
            && first <= last
        {
            codes = codes.saturating_add(last - first + 1);
        }
        before = code.filter(|_| gap.is_empty());
        in_targets = gap == b"[" || (in_targets && gap.is_empty());
    }
    codes
}

/// Length and value of a code of three or four bytes in hexadecimal digits.
fn wide_code(hex: &[u8]) -> Option<(usize, u64)> {
    let digits = std::str::from_utf8(hex).ok().filter(|digits| matches!(digits.len(), 6 | 8))?;
    Some((digits.len(), u64::from_str_radix(digits, 16).ok()?))
}

/// Bytes without the spaces and tabs around them.
fn blank_trimmed(bytes: &[u8]) -> &[u8] {
    let is_word = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(is_word).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(is_word).map_or(start, |last| last + 1);
    &bytes[start..end]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use lopdf::dictionary;

    use super::*;

    #[test]
    fn ranges_of_wide_codes_are_counted() {
        for (table, expected) in [
            ("1 beginbfrange\n<00000000> <FFFFFFFF> <0041>\nendbfrange", 1 << 32),
            ("1 beginbfrange <000000>\t<0000ff> <0041> <000100><0001ff>[<0041> <0042>] endbfrange", 512),
            ("1 beginbfrange <01> <02> <D83DDE00> <D83DDE00> <D83DDEFF> <0041> endbfrange", 1 + 256),
            ("2 beginbfrange\n<0000> <FFFF> <0000>\n<01> <02> <D83CDF00>\n<03> <04> <D83DDE00>\nendbfrange", 0),
            ("1 beginbfrange\n<01> <03> [<D83CDF00> <D83DDE00> <D83DDE01>]\nendbfrange", 0),
            ("1 begincodespacerange\n<00000000> <FFFFFFFF>\nendcodespacerange", 0),
            ("2 beginbfchar\n<00000001> <D83DDE00>\n<00000002> <D83DDE01>\nendbfchar <", 0),
        ] {
            assert_eq!(wide_codes(table.as_bytes()), expected, "{table}");
        }
    }

    /// Document of a page with the font `F1`, whose table has this range.
    fn document(range: &str) -> (Document, ObjectId) {
        let table = format!(
            "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n/CMapName /A def\n/CMapType 2 def\n1 \
             beginbfrange\n{range}\nendbfrange\nendcmap\nCMapName currentdict /CMap defineresource pop\nend\nend"
        );
        let mut document = Document::with_version("1.5");
        let table = document.add_object(Stream::new(dictionary! {}, table.into_bytes()));
        let font = document.add_object(dictionary! {
            "Type" => "Font", "Subtype" => "Type0", "BaseFont" => "A", "Encoding" => "Identity-H", "ToUnicode" => table,
        });
        let resources = dictionary! { "Font" => dictionary! { "F1" => font } };
        let page = document.add_object(dictionary! { "Type" => "Page", "Resources" => resources });
        (document, page)
    }

    #[test]
    fn a_font_is_decoded_once_unless_its_table_is_too_large() {
        let (document, page) = document("<0001> <0100> <0041>");
        let mut fonts = FontEncodings::new(&document);
        let names = fonts.of_page(page).unwrap();
        assert!(fonts.known.is_empty(), "only the fonts that are used are decoded");
        let first = fonts.encoding(&names, b"F1").unwrap().unwrap();
        assert_eq!(first.bytes_to_string(&[0, 1, 0, 2]).unwrap(), "AB");
        let left = fonts.left;
        assert!(left <= LARGEST_ENCODINGS - 256 * CODE_BYTES);
        let second = fonts.encoding(&names, b"F1").unwrap().unwrap();
        assert!(Rc::ptr_eq(&first, &second) && fonts.left == left);
        assert!(fonts.encoding(&names, b"F2").unwrap().is_none());
        let mut fonts = FontEncodings { left: 1000, ..FontEncodings::new(&document) };
        assert!(fonts.encoding(&names, b"F1").is_err_and(|error| error.contains("encodings")));
    }

    #[test]
    fn entries_that_change_an_encoding_are_counted() {
        let mut document = Document::with_version("1.5");
        let names = (0..100).map(|_| Object::Name(b"A".to_vec())).collect();
        let encoding = document.add_object(dictionary! { "Type" => "Encoding", "Differences" => Object::Array(names) });
        let font = dictionary! { "Type" => "Font", "Subtype" => "Type1", "Encoding" => encoding };
        let own = dictionary! { "Font" => dictionary! { "F1" => font } };
        let page = document.add_object(dictionary! { "Type" => "Page", "Resources" => own });
        let mut fonts = FontEncodings { left: 100 * DIFFERENCE_BYTES, ..FontEncodings::new(&document) };
        let names = fonts.of_page(page).unwrap();
        assert!(fonts.encoding(&names, b"F1").unwrap().is_some());
        assert_eq!(fonts.left, 0);
    }

    #[test]
    fn a_range_of_all_codes_is_not_expanded() {
        let (document, page) = document("<00000000> <FFFFFFFF> <0041>");
        let mut fonts = FontEncodings::new(&document);
        let names = fonts.of_page(page).unwrap();
        assert!(fonts.encoding(&names, b"F1").unwrap().is_none());
    }
}
