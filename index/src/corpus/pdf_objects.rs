//! Loads the objects of PDF files within a budget of memory.
//!
//! The library bounds how far a stream grows, but not how many objects are made of one text: the entries of an object
//! stream, or of the cross-reference table, may all name the same long string, and each gets a copy. It has a filter for
//! the objects of the table only. So it reads these alone, from a copy of the file that [hides](pdf_keys) the rest; this
//! module finds the contents of streams whose lengths are objects, decrypts objects, and reads object streams.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lopdf::encryption::decrypt_object;
use lopdf::xref::XrefEntry;
use lopdf::{DecompressError, Document, EncryptionState, Error, LoadOptions, Object, ObjectId, ObjectStream, Stream};

use super::prose::ProseFault;
use super::read_limits::{ReadLimits, ReadStop};
use super::{LONGEST_RECORD, pdf_keys};

/// Approximate memory of an object besides its text, in bytes.
const OBJECT_BYTES: u64 = size_of::<Object>() as u64;

/// Beginning of the header of a file, from which the library counts positions.
const HEADER: &[u8] = b"%PDF-";

/// Type of object streams, and the type that hides them from the library.
const OBJECT_STREAM: &[u8] = b"ObjStm";
const HIDDEN_OBJECT_STREAM: &[u8] = b"objstm";

/// Word that ends the content of a stream.
const STREAM_END: &[u8] = b"endstream";

/// White space between objects.
const BLANKS: &[u8] = b" \t\n\r\0\x0c";

/// Signs that end a name or a number.
const DELIMITERS: &[u8] = b"()<>[]{}/%";

thread_local! {
    // The library calls a plain function, which holds no state, on the thread that loads the file.
    /// Bytes that further objects of the file that is being loaded may take.
    static BUDGET: Cell<u64> = const { Cell::new(0) };
    /// Limits on the reading of the file that is being loaded.
    static LIMITS: RefCell<ReadLimits> = const { RefCell::new(ReadLimits { bytes: None, go_on: None }) };
}

/// Payload of the panic that ends the loading of a file whose budget is used up.
struct Exhausted;

/// Loads a file whose objects take at most about `most` bytes, or twice as much while a damaged file is loaded again.
///
/// # Errors
/// If the file is damaged or needs a password, its objects take more, or the reading has to end.
pub(super) fn load(bytes: &[u8], most: u64, limits: &ReadLimits) -> Result<Document, ProseFault> {
    let start = bytes.windows(HEADER.len()).position(|window| window == HEADER).unwrap_or(0);
    let bytes = &bytes[start..];
    let hidden = pdf_keys::hidden(bytes);
    let document = load_once(bytes, &hidden, most, limits, false)?;
    if has_pages(&document) {
        return Ok(document);
    }
    // With a filter, the library does not search a damaged file for its objects by itself.
    match load_once(bytes, &hidden, most, limits, true) {
        Ok(rebuilt) if has_pages(&rebuilt) => Ok(rebuilt),
        Err(stopped @ ProseFault::Stopped(_)) => Err(stopped),
        _ => Ok(document),
    }
}

fn has_pages(document: &Document) -> bool {
    document.page_iter().next().is_some()
}

/// Loads a file once. `hidden` is the file as the library sees it.
fn load_once(
    bytes: &[u8],
    hidden: &[u8],
    most: u64,
    limits: &ReadLimits,
    force_reconstruct: bool,
) -> Result<Document, ProseFault> {
    BUDGET.set(most);
    LIMITS.set(limits.clone());
    let options = LoadOptions {
        filter: Some(within_budget),
        max_decompressed_size: Some(LONGEST_RECORD),
        force_reconstruct,
        ..LoadOptions::default()
    };
    let loaded = catch_unwind(AssertUnwindSafe(|| Document::load_mem_with_options(hidden, options)));
    LIMITS.set(ReadLimits::default());
    let document = match loaded {
        Ok(loaded) => loaded.map_err(|error| unreadable(&error))?,
        Err(panic) if panic.is::<Exhausted>() => return Err(too_large(most)),
        Err(panic) => match panic.downcast::<ReadStop>() {
            Ok(stop) => return Err(ProseFault::Stopped(*stop)),
            Err(other) => resume_unwind(other),
        },
    };
    let stream_ends = OnceCell::new();
    let mut file = PartialDocument { document, bytes, stream_ends, limits, most, left: BUDGET.get() };
    file.complete()?;
    Ok(file.document)
}

fn unreadable(error: &Error) -> ProseFault {
    ProseFault::Damaged(format!("the PDF file cannot be read: {error}"))
}

fn too_large(most: u64) -> ProseFault {
    ProseFault::Unsupported(format!("the objects of the PDF file take more than {most} bytes: split it"))
}

/// Subtracts an object from the budget, and hides an object stream. The library calls this before it keeps an object.
fn within_budget(id: ObjectId, object: &mut Object) -> Option<(ObjectId, Object)> {
    if let Err(stop) = LIMITS.with_borrow(ReadLimits::check) {
        resume_unwind(Box::new(stop));
    }
    let Some(left) = BUDGET.get().checked_sub(size(object)) else {
        // The library has no other way to end early. This one prints no message.
        resume_unwind(Box::new(Exhausted));
    };
    BUDGET.set(left);
    if let Object::Stream(stream) = object
        && stream.dict.has_type(OBJECT_STREAM)
    {
        stream.dict.set("Type", Object::Name(HIDDEN_OBJECT_STREAM.to_vec()));
    }
    // The library keeps `object`, and takes the returned one for objects of object streams only.
    Some((id, Object::Null))
}

/// A file of which the library has read the objects of the cross-reference table.
struct PartialDocument<'a> {
    document: Document,
    /// The file, from its header on.
    bytes: &'a [u8],
    /// Places at which a stream may end, in order. Searched for once, if a length is wrong.
    stream_ends: OnceCell<Vec<usize>>,
    limits: &'a ReadLimits,
    /// Bytes that all objects may take.
    most: u64,
    /// Bytes that further objects may take.
    left: u64,
}

impl<'a> PartialDocument<'a> {
    /// Reads what was hidden from the library.
    fn complete(&mut self) -> Result<(), ProseFault> {
        let encryption = self.encryption()?;
        self.read_contents(None)?;
        if let Some(state) = &encryption {
            self.decrypt(state);
        }
        self.read_object_streams()?;
        // Object streams may hold lengths.
        self.read_contents(encryption.as_ref())
    }

    /// Returns the key of the file. `None` if the file is not encrypted.
    fn encryption(&mut self) -> Result<Option<EncryptionState>, ProseFault> {
        let Some(encryption) = self.document.trailer.remove(pdf_keys::ENCRYPT) else { return Ok(None) };
        self.document.trailer.set("Encrypt", encryption);
        let opened = self.document.authenticate_password("");
        let state = opened.and_then(|()| EncryptionState::decode(&self.document, ""));
        let locked = |_| ProseFault::Unsupported("the PDF file is encrypted: remove its password first".to_owned());
        state.map(Some).map_err(locked)
    }

    /// Decrypts all objects but streams that wait for their content.
    fn decrypt(&mut self, state: &EncryptionState) {
        let own = self.document.trailer.remove(b"Encrypt");
        let own = own.and_then(|own| own.as_reference().ok());
        for (id, object) in &mut self.document.objects {
            if Some(*id) != own && !waits(object) {
                // As in the library, an object is decrypted as far as possible.
                let _ = decrypt_object(state, *id, object);
            }
        }
    }

    /// Reads the contents of streams whose lengths are known by now, and decrypts them with a key.
    fn read_contents(&mut self, encryption: Option<&EncryptionState>) -> Result<(), ProseFault> {
        let known = |(id, object): (&ObjectId, &Object)| Some((*id, self.content(object)?));
        let known: Vec<(ObjectId, &'a [u8])> = self.document.objects.iter().filter_map(known).collect();
        for (id, content) in known {
            self.subtract(content.len() as u64)?;
            let Some(object) = self.document.objects.get_mut(&id) else { continue };
            if let Object::Stream(stream) = object {
                stream.dict.remove(pdf_keys::LENGTH);
                stream.set_content(content.to_vec());
            }
            if let Some(state) = encryption {
                let _ = decrypt_object(state, id, object);
            }
        }
        Ok(())
    }

    /// Returns the content of a stream whose length was hidden from the library. `None` if the length is not known.
    fn content(&self, stream: &Object) -> Option<&'a [u8]> {
        let stream = stream.as_stream().ok()?;
        let (_, length) = self.document.dereference(stream.dict.get(pdf_keys::LENGTH).ok()?).ok()?;
        let length = usize::try_from(whole_number(length)?).ok()?;
        let start = stream.start_position?;
        let rest = self.bytes.get(start..)?;
        if rest.get(length..).is_some_and(|behind| behind_line_break(behind).starts_with(STREAM_END)) {
            return Some(&rest[..length]);
        }
        // The length is wrong.
        let end = self.stream_end(start)?;
        let content = &self.bytes[start..end];
        let content = content.strip_suffix(b"\n").unwrap_or(content);
        Some(content.strip_suffix(b"\r").unwrap_or(content))
    }

    /// Returns the first place from `start` on at which a stream may end.
    fn stream_end(&self, start: usize) -> Option<usize> {
        let ends = self.stream_ends.get_or_init(|| {
            let windows = self.bytes.windows(STREAM_END.len()).enumerate();
            windows.filter(|(_, window)| *window == STREAM_END).map(|(place, _)| place).collect()
        });
        ends.get(ends.partition_point(|end| *end < start)).copied()
    }

    /// Reads the objects in object streams.
    fn read_object_streams(&mut self) -> Result<(), ProseFault> {
        let hidden = |(id, object): (&ObjectId, &Object)| {
            let stream = object.as_stream().ok()?;
            stream.dict.has_type(HIDDEN_OBJECT_STREAM).then_some(*id)
        };
        let hidden: Vec<ObjectId> = self.document.objects.iter().filter_map(hidden).collect();
        for id in hidden {
            // A stream that cannot be decompressed takes time, but nothing of the budget.
            self.limits.check()?;
            let Some(Object::Stream(stream)) = self.document.objects.get(&id) else { continue };
            if expansion(stream, self.left) > self.left {
                return Err(too_large(self.most));
            }
            let objects = match ObjectStream::new_with_limit(stream, Some(LONGEST_RECORD)) {
                Ok(inner) => inner.objects,
                Err(error @ Error::Decompress(DecompressError::MemoryLimitExceeded { .. })) => {
                    return Err(unreadable(&error));
                }
                // As in the library, an object stream that is damaged in another way is skipped.
                Err(_) => continue,
            };
            self.keep(id.0, objects)?;
        }
        Ok(())
    }

    /// Keeps the objects of an object stream, unless a later version of the file has replaced or deleted them.
    fn keep(&mut self, container: u32, objects: BTreeMap<ObjectId, Object>) -> Result<(), ProseFault> {
        for (id, object) in objects {
            let is_current = match self.document.reference_table.get(id.0) {
                Some(XrefEntry::Compressed { container: current, .. }) => *current == container,
                Some(XrefEntry::Free | XrefEntry::UnusableFree) => false,
                Some(XrefEntry::Normal { .. }) | None => true,
            };
            if is_current && !self.document.objects.contains_key(&id) {
                self.subtract(size(&object))?;
                self.document.objects.insert(id, object);
            }
        }
        Ok(())
    }

    /// Subtracts memory from the budget.
    fn subtract(&mut self, bytes: u64) -> Result<(), ProseFault> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| too_large(self.most))?;
        Ok(())
    }
}

/// Returns `true` for a stream without its content, whose length was hidden from the library.
fn waits(object: &Object) -> bool {
    object.as_stream().is_ok_and(|stream| stream.start_position.is_some() && stream.dict.has(pdf_keys::LENGTH))
}

/// Returns the value of a whole number, which some programs write as `42.`.
fn whole_number(object: &Object) -> Option<i64> {
    let number = object.as_f32().ok().filter(|number| number.fract() == 0.0);
    object.as_i64().ok().or_else(|| number.map(|number| number as i64))
}

/// Removes a line break from the beginning of a text.
fn behind_line_break(text: &[u8]) -> &[u8] {
    match text {
        [b'\r', b'\n', rest @ ..] | [b'\r' | b'\n', rest @ ..] => rest,
        _ => text,
    }
}

/// Returns the approximate memory of an object.
fn size(object: &Object) -> u64 {
    let entry = |(key, value): (&Vec<u8>, &Object)| key.len() as u64 + size(value);
    let inner = match object {
        Object::Name(text) | Object::String(text, _) => text.len() as u64,
        Object::Array(items) => items.iter().map(size).sum(),
        Object::Dictionary(fields) => fields.iter().map(entry).sum(),
        Object::Stream(stream) => stream.content.len() as u64 + stream.dict.iter().map(entry).sum::<u64>(),
        _ => 0,
    };
    OBJECT_BYTES + inner
}

/// Returns the approximate memory of the objects in an object stream, not less than what the library takes. Stops above
/// `most`.
fn expansion(stream: &Stream, most: u64) -> u64 {
    let first = stream.dict.get(b"First").and_then(Object::as_i64).ok().and_then(|first| usize::try_from(first).ok());
    // The library cannot decode more either. It decodes the content before it looks at `First`.
    let Ok(content) = stream.get_plain_content_with_limit(LONGEST_RECORD) else { return 0 };
    let Some(first) = first else { return content.len() as u64 };
    let index = content.get(..first).and_then(|index| std::str::from_utf8(index).ok()).unwrap_or_default();
    // A comment ends with its line.
    let lines = index.split(['\r', '\n']).map(|line| line.split('%').next().unwrap_or_default());
    let numbers = lines.flat_map(str::split_whitespace);
    let mut total = content.len() as u64;
    // Each entry consists of the number of an object and its offset.
    for offset in numbers.skip(1).step_by(2) {
        let start = offset.parse::<u32>().ok().and_then(|offset| first.checked_add(offset as usize));
        total += extent(start.and_then(|start| content.get(start..)).unwrap_or_default(), most);
        if total > most {
            break;
        }
    }
    total
}

/// Returns the approximate memory of the object at the beginning of `text`, with all text that is read for it. Stops
/// above `most`.
fn extent(text: &[u8], most: u64) -> u64 {
    let mut end = blank_length(text);
    let mut depth = 0_usize;
    let mut values = 0;
    while let Some((&first, token)) = text.get(end..).and_then(|token| Some((token.first()?, token))) {
        // Only a reference, such as `5 0 R`, consists of several values without brackets.
        if depth == 0 && values > 0 && !(first.is_ascii_digit() || first == b'R') {
            break;
        }
        let length = token_length(token);
        match &token[..length] {
            b"[" | b"<<" => depth += 1,
            b"]" | b">>" => depth = depth.saturating_sub(1),
            _ => {}
        }
        values += 1;
        end += length;
        let is_whole = depth == 0 && (values == 3 || !first.is_ascii_digit());
        if is_whole || end as u64 + values * OBJECT_BYTES > most {
            break;
        }
        end += blank_length(&text[end..]);
    }
    end as u64 + (values + 1) * OBJECT_BYTES
}

/// Returns the length of the white space and the comments at the beginning of a text.
pub(super) fn blank_length(text: &[u8]) -> usize {
    let mut in_comment = false;
    let mut is_blank = |byte: u8| {
        in_comment = (in_comment || byte == b'%') && !matches!(byte, b'\r' | b'\n');
        in_comment || BLANKS.contains(&byte)
    };
    text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len())
}

/// Returns `true` for a byte that does not end a name or a number.
pub(super) fn is_regular(byte: u8) -> bool {
    !BLANKS.contains(&byte) && !DELIMITERS.contains(&byte)
}

/// Returns the length of the token at the beginning of a text: a bracket, a string, a name or another word.
fn token_length(text: &[u8]) -> usize {
    let regular = |byte: &&u8| is_regular(**byte);
    match text {
        [b'<', b'<', ..] | [b'>', b'>', ..] => 2,
        [b'<', ..] => text.iter().position(|byte| *byte == b'>').map_or(text.len(), |end| end + 1),
        [b'(', ..] => string_length(text),
        [b'/', name @ ..] => 1 + name.iter().take_while(regular).count(),
        _ => text.iter().take_while(regular).count().max(1),
    }
}

/// Returns the length of a string in parentheses, which may hold others.
fn string_length(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut escaped = false;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use lopdf::{EncryptionVersion, Permissions, dictionary};

    use super::*;

    /// Bytes that the objects of the files below may take.
    const MOST: u64 = 10 << 20;

    /// Loads a file without limits on its reading.
    fn load(bytes: &[u8], most: u64) -> Result<Document, ProseFault> {
        super::load(bytes, most, &ReadLimits::default())
    }

    /// File without pages, whose object 3 is `object`. `more` further entries of its table name the same place.
    fn file(object: &str, more: usize) -> Vec<u8> {
        let mut out = "%PDF-1.5\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n".to_owned();
        let pages = out.len();
        out += "2 0 obj\n<</Type/Pages/Kids[]/Count 0>>\nendobj\n";
        let start = out.len();
        out += &format!("3 0 obj\n{object}\nendobj\n");
        let table = out.len();
        let size = 4 + more;
        out += &format!("xref\n0 {size}\n0000000000 65535 f \n{:010} 00000 n \n{pages:010} 00000 n \n", 9);
        out += &format!("{start:010} 00000 n \n").repeat(1 + more);
        out += &format!("trailer\n<</Size {size}/Root 1 0 R>>\nstartxref\n{table}\n%%EOF\n");
        out.into_bytes()
    }

    /// Object stream of 1000 objects, whose offsets in `text` are multiples of `step`.
    fn object_stream(step: usize, text: &str) -> String {
        let index: String = (0..1000).map(|number| format!("{} {} ", 2000 + number, step * number)).collect();
        let length = index.len() + text.len();
        format!("<</Type/ObjStm/N 1000/First {}/Length {length}>>\nstream\n{index}{text}\nendstream", index.len())
    }

    #[test]
    fn objects_that_are_one_text_are_refused_before_they_are_copied() {
        let long = format!("({})", "x".repeat(100_000));
        let escaped = format!("({})", "\\(".repeat(50_000));
        for (object, more) in [
            (object_stream(0, &long), 0),
            // Strings that begin within each other.
            (object_stream(2, &escaped), 0),
            (long, 1000),
        ] {
            let refused = load(&file(&object, more), MOST);
            assert!(matches!(refused, Err(ProseFault::Unsupported(message)) if message.contains("10485760 bytes")));
        }
        let short = load(&file("(short)", 1000), MOST).ok().unwrap();
        assert_eq!(short.get_object((3, 0)).unwrap().as_str().unwrap(), b"short");
    }

    #[test]
    fn objects_of_an_object_stream_are_kept() {
        let object = object_stream(17, &"(ab)<</A 5 0 R>>\n".repeat(1000));
        let document = load(&file(&object, 0), MOST).ok().unwrap();
        assert_eq!(document.get_object((2999, 0)).unwrap().as_str().unwrap(), b"ab");
    }

    /// File whose object 4 is a stream. Its length stands in object 3, a stream of the given type.
    fn file_with_distant_length(kind: &str, length: usize) -> Vec<u8> {
        let objects = [
            "<</Type/Catalog/Pages 2 0 R>>".to_owned(),
            "<</Type/Pages/Kids[]/Count 0>>".to_owned(),
            format!("<</Type/{kind}/N 1/First 4/Length 5>>\nstream\n6 0 {length}\nendstream"),
            "<</Length 6 0 R>>\nstream\nabc\nendstream".to_owned(),
        ];
        let mut out = b"%PDF-1.5\n".to_vec();
        // An entry has seven bytes: its kind, its place or its object stream, and its number there.
        let mut table = vec![0_u8; 7];
        let entry = |place: usize| [&[1][..], &(place as u32).to_be_bytes(), &[0, 0]].concat();
        for (object, number) in objects.iter().zip(1..) {
            table.extend(entry(out.len()));
            out.extend(format!("{number} 0 obj\n{object}\nendobj\n").bytes());
        }
        let start = out.len();
        table.extend(entry(start));
        table.extend([2, 0, 0, 0, 3, 0, 0]);
        let length = table.len();
        out.extend(format!("5 0 obj\n<</Type/XRef/Size 7/W[1 4 2]/Root 1 0 R/Length {length}>>\nstream\n").bytes());
        out.extend(table);
        out.extend(format!("\nendstream\nendobj\nstartxref\n{start}\n%%EOF\n").bytes());
        out
    }

    #[test]
    fn lengths_are_looked_up_in_object_streams_within_the_budget() {
        // A wrong length is mended. A stream that is no object stream is not read, whatever the table says.
        for (kind, length, content) in [("ObjStm", 3, "abc"), ("ObjStm", 2, "abc"), ("Other", 3, "")] {
            let document = load(&file_with_distant_length(kind, length), MOST).ok().unwrap();
            let stream = document.get_object((4, 0)).unwrap().as_stream().unwrap();
            assert_eq!(stream.content, content.as_bytes(), "{kind}, {length}");
        }
        let refused = load(&file_with_distant_length("ObjStm", 3), 6 * OBJECT_BYTES);
        assert!(matches!(refused, Err(ProseFault::Unsupported(_))));
    }

    #[test]
    fn encrypted_object_streams_are_read_within_the_budget() {
        for (text, is_refused) in [("x".repeat(100_000), true), ("ab".to_owned(), false)] {
            let mut document = Document::load_mem(&file("(short)", 0)).unwrap();
            let index: String = (0..1000).map(|number| format!("{} 0 ", 2000 + number)).collect();
            let first = index.len() as i64;
            // The library writes no object streams, so the name is changed behind its back.
            let fields = dictionary! { "Type" => "AbjStm", "N" => 1000, "First" => first };
            let stream = Stream::new(fields, format!("{index}({text})").into_bytes());
            document.objects.insert((9, 0), Object::Stream(stream));
            document.max_id = 9;
            let mut bytes = encrypted(document, "");
            let name = bytes.windows(6).position(|window| window == b"AbjStm").unwrap();
            bytes[name] = b'O';
            match load(&bytes, MOST) {
                Ok(document) => {
                    assert_eq!(document.get_object((2999, 0)).unwrap().as_str().unwrap(), text.as_bytes());
                    assert_eq!(document.get_object((3, 0)).unwrap().as_str().unwrap(), b"short");
                    assert!(!is_refused);
                }
                Err(ProseFault::Unsupported(message)) => assert!(is_refused && message.contains("10485760 bytes")),
                Err(_) => panic!("the file is damaged"),
            }
        }
    }

    /// Encrypts a document with a password for readers, which may be empty, and writes it.
    pub(in crate::corpus) fn encrypted(mut document: Document, user_password: &str) -> Vec<u8> {
        let id = Object::string_literal("0123456789abcdef");
        document.trailer.set("ID", Object::Array(vec![id.clone(), id]));
        let state = EncryptionState::try_from(EncryptionVersion::V2 {
            document: &document,
            owner_password: "owner",
            user_password,
            key_length: 128,
            permissions: Permissions::all(),
        });
        document.encrypt(&state.unwrap()).unwrap();
        let mut out = Vec::new();
        document.save_to(&mut out).unwrap();
        out
    }

    #[test]
    fn the_extent_of_an_object_is_not_less_than_what_is_read() {
        for (object, values) in [
            ("(a(b)\\)c)", 1),
            ("<</A[1 2]/B(x)>>", 9),
            ("<41 42>", 1),
            ("% comment\n /Name", 1),
            ("5 0 R", 3),
            ("-5.0", 1),
            ("[[1]<</A 1>>]", 9),
        ] {
            let text = format!("{object} (next)");
            let expected = object.len() as u64 + (values + 1) * OBJECT_BYTES;
            assert_eq!(extent(text.as_bytes(), u64::MAX), expected, "{object}");
        }
        assert!(extent(b"7 (next)", u64::MAX) < 20 + 2 * OBJECT_BYTES, "a number that begins no reference");
        assert!(extent(&[b'['; 1000], 10 * OBJECT_BYTES) < 14 * OBJECT_BYTES, "not read further");
    }
}
