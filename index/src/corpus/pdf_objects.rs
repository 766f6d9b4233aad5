//! Loads the objects of PDF files within a budget of memory.
//!
//! The library bounds how far a stream grows, but not how many objects are made of one text: the entries of an object
//! stream, or of the cross-reference table, may all name the same long string, and each gets a copy. The budget covers
//! files that are not encrypted, except for object streams that the library needs to find the length of another stream.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lopdf::{Document, LoadOptions, Object, ObjectId, Stream};

use super::LONGEST_RECORD;
use super::prose::ProseFault;

/// Approximate memory of an object besides its text, in bytes.
const OBJECT_BYTES: u64 = size_of::<Object>() as u64;

/// White space between objects.
const BLANKS: &[u8] = b" \t\n\r\0\x0c";

/// Signs that end a name or a number.
const DELIMITERS: &[u8] = b"()<>[]{}/%";

/// Budget of a file that is being loaded.
#[derive(Clone, Copy)]
struct ObjectBudget {
    /// Bytes that further objects may take.
    left: u64,
    /// Bytes subtracted for objects that the library is about to read from an object stream.
    prepaid: u64,
}

thread_local! {
    // The library calls a plain function, which holds no state, on the thread that loads the file.
    static BUDGET: Cell<ObjectBudget> = const { Cell::new(ObjectBudget { left: 0, prepaid: 0 }) };
}

/// Payload of the panic that ends the loading of a file whose budget is used up.
struct Exhausted;

/// Loads a file whose objects take at most about `most` bytes, or twice as much while a damaged file is loaded again.
///
/// # Errors
/// If the file is damaged, or its objects take more.
pub(super) fn load(bytes: &[u8], most: u64) -> Result<Document, ProseFault> {
    let document = load_once(bytes, most, false)?;
    if document.is_encrypted() || has_pages(&document) {
        return Ok(document);
    }
    // With a filter, the library does not search a damaged file for its objects by itself.
    match load_once(bytes, most, true) {
        Ok(rebuilt) if has_pages(&rebuilt) => Ok(rebuilt),
        _ => Ok(document),
    }
}

fn has_pages(document: &Document) -> bool {
    document.page_iter().next().is_some()
}

fn load_once(bytes: &[u8], most: u64, force_reconstruct: bool) -> Result<Document, ProseFault> {
    BUDGET.set(ObjectBudget { left: most, prepaid: 0 });
    let options = LoadOptions {
        filter: Some(within_budget),
        max_decompressed_size: Some(LONGEST_RECORD),
        force_reconstruct,
        ..LoadOptions::default()
    };
    match catch_unwind(AssertUnwindSafe(|| Document::load_mem_with_options(bytes, options))) {
        Ok(loaded) => loaded.map_err(|error| ProseFault::Damaged(format!("the PDF file cannot be read: {error}"))),
        Err(panic) if panic.is::<Exhausted>() => {
            Err(ProseFault::Unsupported(format!("the objects of the PDF file take more than {most} bytes: split it")))
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Keeps an object, and subtracts it from the budget. The library calls this before it keeps an object, and before it
/// reads those in an object stream.
fn within_budget(id: ObjectId, object: &mut Object) -> Option<(ObjectId, Object)> {
    let object: &Object = object;
    let ObjectBudget { left, prepaid } = BUDGET.get();
    let own = size(object);
    let covered = own.min(prepaid);
    let inner = match object {
        Object::Stream(stream) if stream.dict.has_type(b"ObjStm") => expansion(stream, left),
        _ => 0,
    };
    let Some(left) = left.checked_sub((own - covered).saturating_add(inner)) else {
        // The library has no other way to end early. This one prints no message.
        resume_unwind(Box::new(Exhausted));
    };
    BUDGET.set(ObjectBudget { left, prepaid: prepaid - covered + inner });
    Some((id, object.clone()))
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
fn blank_length(text: &[u8]) -> usize {
    let mut in_comment = false;
    let mut is_blank = |byte: u8| {
        in_comment = (in_comment || byte == b'%') && !matches!(byte, b'\r' | b'\n');
        in_comment || BLANKS.contains(&byte)
    };
    text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len())
}

/// Returns the length of the token at the beginning of a text: a bracket, a string, a name or another word.
fn token_length(text: &[u8]) -> usize {
    let is_regular = |byte: &u8| !BLANKS.contains(byte) && !DELIMITERS.contains(byte);
    match text {
        [b'<', b'<', ..] | [b'>', b'>', ..] => 2,
        [b'<', ..] => text.iter().position(|byte| *byte == b'>').map_or(text.len(), |end| end + 1),
        [b'(', ..] => string_length(text),
        [b'/', name @ ..] => 1 + name.iter().take_while(|byte| is_regular(byte)).count(),
        _ => text.iter().take_while(|byte| is_regular(byte)).count().max(1),
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Bytes that the objects of the files below may take.
    const MOST: u64 = 10 << 20;

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
