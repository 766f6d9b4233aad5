//! Replaces the character references of HTML, such as `&eacute;` and `&#233;`.

use std::borrow::Cow;

use encoding_rs::WINDOWS_1252;
use pulldown_cmark::{Event, Parser};

/// Maximum bytes between `&` and `;` of a character reference.
const LONGEST_REFERENCE: usize = 34;

/// Replaces character references by their characters; unknown ones stay as they are.
pub(super) fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.bytes().take(LONGEST_REFERENCE).position(|byte| byte == b';');
        match end.and_then(|end| Some((end, reference(&rest[..end])?))) {
            Some((end, characters)) => {
                out.push_str(&characters);
                rest = &rest[end + 1..];
            }
            None => out.push('&'),
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn reference(name: &str) -> Option<String> {
    match name.strip_prefix('#') {
        Some(number) => numbered(number).map(String::from),
        None => named(name),
    }
}

/// Returns the character of a number, which is hexadecimal behind an `x`.
fn numbered(number: &str) -> Option<char> {
    let (digits, radix) = number.strip_prefix(['x', 'X']).map_or((number, 10), |digits| (digits, 16));
    // The library would also take a sign.
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    match u32::from_str_radix(digits, radix).ok()? {
        0 => None,
        // Old pages mean the characters of Windows, as in browsers (WHATWG HTML, 13.2.5.80).
        code @ 0x80..=0x9f => {
            let byte = u8::try_from(code).ok()?;
            WINDOWS_1252.decode_without_bom_handling(&[byte]).0.chars().next()
        }
        code => char::from_u32(code),
    }
}

fn named(name: &str) -> Option<String> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let whole = format!("&{name};");
    if let Ok(character) = htmlescape::decode_html(&whole) {
        return Some(character);
    }
    // The names of HTML 4 are found above, which is faster. Markdown has all names of HTML5.
    let texts = Parser::new(&whole).filter_map(|event| match event {
        Event::Text(text) => Some(text.into_string()),
        _ => None,
    });
    let text: String = texts.collect();
    (text != whole).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_by_what_browsers_show() {
        for (text, expected) in [
            ("Curie&apos;s &ndash; it&#146;s &lbrace;open&rbrace;", "Curie's – it’s {open}"),
            ("&eacute;&AMP;&ccaron;&ngE;&#X41;&#x2019;&#150;", "é&č≧\u{338}A’–"),
            ("&&amp;lt;&amp &bogus; &; &#; &#x; &#+65; &*a*;", "&&lt;&amp &bogus; &; &#; &#x; &#+65; &*a*;"),
            ("&#0;&#xffffffff;&#xd800;&#4294967361;&", "&#0;&#xffffffff;&#xd800;&#4294967361;&"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }
}
