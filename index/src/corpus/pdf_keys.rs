//! Keys of PDF files that make the library read objects without a filter: the length of a stream, if it is an object of
//! its own, which may stand in an object stream, and the encryption of a file. A copy of the file with other keys hides
//! both from the library.

use std::borrow::Cow;

use super::pdf_objects::{blank_length, is_regular};

/// Hidden key of the length of a stream.
pub(super) const LENGTH: &[u8] = b"length";

/// Hidden key of the encryption of a file.
pub(super) const ENCRYPT: &[u8] = b"encrypt";

/// Number of bytes read behind the key of a length. A length that stands further away may be a reference.
const LOOKAHEAD: usize = 256;

/// Returns the file with hidden keys. It has the same length, so that all objects keep their places.
pub(super) fn hidden(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Cow::Borrowed(bytes);
    let slashes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    for (slash, _) in slashes {
        let first = slash + 1;
        if !is_hidden(&bytes[first..]) {
            continue;
        }
        // The first letter becomes a small one, also where it is written as its number.
        match bytes[first] {
            b'#' => out.to_mut()[first + 1] = b'6',
            _ => out.to_mut()[first].make_ascii_lowercase(),
        }
    }
    out
}

/// Returns `true` if the name at the beginning of a text has to be hidden.
fn is_hidden(text: &[u8]) -> bool {
    if !matches!(text.first(), Some(b'L' | b'E' | b'#')) {
        return false;
    }
    let (name, end) = decoded(text);
    match name.as_slice() {
        b"Encrypt" => true,
        b"Length" => may_be_reference(&text[end..]),
        _ => false,
    }
}

/// Returns the name at the beginning of a text, without its escapes, and the place of its end. A name that is longer than
/// the hidden keys is cut.
fn decoded(text: &[u8]) -> (Vec<u8>, usize) {
    let mut name = Vec::new();
    let mut end = 0;
    while let Some(&byte) = text.get(end)
        && is_regular(byte)
        && name.len() <= ENCRYPT.len()
    {
        if byte != b'#' {
            name.push(byte);
            end += 1;
            continue;
        }
        let digits = text.get(end + 1..end + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        // As in the library, any other number sign ends the name.
        let escaped = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let Some(byte) = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else { break };
        name.push(byte);
        end += 3;
    }
    (name, end)
}

/// Returns `false` if the text does not begin with a reference, such as `5 0 R`.
fn may_be_reference(text: &[u8]) -> bool {
    let mut rest = &text[..text.len().min(LOOKAHEAD)];
    for _ in 0..2 {
        rest = &rest[blank_length(rest)..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 && !rest.is_empty() {
            return false;
        }
        rest = &rest[digits..];
    }
    matches!(rest[blank_length(rest)..], [] | [b'R', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_lengths_and_the_encryption_are_hidden() {
        for (written, hides) in [
            ("<</Length 5 0 R>>", "<</length 5 0 R>>"),
            ("<</Length%5\n12\x00345\tR>>", "<</length%5\n12\x00345\tR>>"),
            ("<</Len#67th 5 0 R>>", "<</len#67th 5 0 R>>"),
            ("<</#4Cength 5 0R>>", "<</#6Cength 5 0R>>"),
            ("<</Root 1 0 R/Encrypt 9 0 R>>", "<</Root 1 0 R/encrypt 9 0 R>>"),
            ("<</#45ncrypt<<>>>>", "<</#65ncrypt<<>>>>"),
        ] {
            assert_eq!(hidden(written.as_bytes()), hides.as_bytes(), "{written}");
        }
        let distant = format!("/Length{}5 0 R", " ".repeat(1000));
        assert_eq!(hidden(distant.as_bytes())[..8], b"/length "[..]);
    }

    #[test]
    fn other_keys_stay_as_they_are() {
        for text in [
            "<</Length 5>>",
            "<</Length 5/Filter/FlateDecode>>",
            "<</Length 5.0>>",
            "<</Length1 5 0 R>>",
            "<</EncryptMetadata true>>",
            "<</Length#>>",
            "/L",
            "/",
            "",
        ] {
            assert!(matches!(hidden(text.as_bytes()), Cow::Borrowed(_)), "{text}");
        }
    }
}
