//! Reads the text of HTML: its sections under their headings, without scripts, styles and navigation.
//!
//! Reads tags one after the other and builds no tree, so deep nesting costs nothing and any input gives some text.

use std::borrow::Cow;

use encoding_rs::{Encoding, WINDOWS_1252};

use super::outline::Outline;
use super::prose::{ProseFault, Sections};

/// Elements whose content is no text.
const HIDDEN: &[&str] =
    &["button", "iframe", "nav", "noscript", "object", "script", "select", "style", "svg", "template", "textarea"];

/// Elements whose content has no tags.
const RAW: &[&str] = &["iframe", "noscript", "script", "style", "textarea", "title"];

/// Elements that begin and end a paragraph.
const BLOCKS: &[&str] = &[
    "address",
    "article",
    "aside",
    "blockquote",
    "body",
    "caption",
    "dd",
    "details",
    "div",
    "dl",
    "dt",
    "fieldset",
    "figcaption",
    "figure",
    "footer",
    "form",
    "header",
    "hr",
    "main",
    "ol",
    "p",
    "pre",
    "section",
    "summary",
    "table",
    "ul",
];

/// Maximum bytes between `&` and `;` of a character reference.
const LONGEST_REFERENCE: usize = 34;

/// Returns the title of a page, which is that of its head or else its first heading of level 1, and its sections.
///
/// In XHTML, a script, style or title whose tag ends in `/>` is empty. A page that begins with an XML declaration is
/// XHTML in any case.
///
/// # Errors
/// If the sections are too large with the headings above each.
pub(super) fn sections(bytes: &[u8], is_xhtml: bool) -> Result<Sections, ProseFault> {
    let page = decoded(bytes);
    let is_xhtml = is_xhtml || page.trim_start().starts_with("<?xml");
    let mut text = PageText::default();
    let mut ends = TagEnds::default();
    let mut rest: &str = &page;
    while let Some(at) = rest.find('<') {
        text.add(&rest[..at]);
        rest = &rest[at..];
        rest = match Markup::of(rest, &mut ends) {
            Markup::Text => {
                text.add("<");
                &rest[1..]
            }
            Markup::Comment(end) => &rest[end..],
            Markup::Tag { name, closes, end } => {
                let behind = &rest[end..];
                let is_empty = rest[..end].ends_with("/>");
                if !closes && RAW.contains(&name.as_str()) && !(is_xhtml && is_empty) {
                    let (content, behind) = raw_content(behind, &name, &mut ends);
                    if name == "title" {
                        text.title(content);
                    }
                    behind
                } else {
                    // `<svg/>` has no content to hide.
                    if !(HIDDEN.contains(&name.as_str()) && is_empty) {
                        text.tag(&name, closes);
                    }
                    behind
                }
            }
        };
    }
    text.add(rest);
    text.finish()
}

/// Decodes a page: UTF-8, or else what its byte order mark or `charset` names, or else Windows-1252 as in browsers.
fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    if Encoding::for_bom(bytes).is_none()
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return Cow::Borrowed(text);
    }
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(1024)]).to_ascii_lowercase();
    let named = head.split("charset=").nth(1).map(|label| label.trim_start_matches(['"', '\'']));
    let label = named.and_then(|label| label.split(['"', '\'', ';', '>', ' ', '/']).next()).unwrap_or_default();
    Encoding::for_label(label.as_bytes()).unwrap_or(WINDOWS_1252).decode(bytes).0
}

/// Markup at the beginning of a text that starts with `<`.
enum Markup {
    /// The character itself.
    Text,
    /// A comment or declaration of this length.
    Comment(usize),
    Tag {
        name: String,
        closes: bool,
        end: usize,
    },
}

impl Markup {
    fn of(text: &str, ends: &mut TagEnds) -> Markup {
        if let Some(comment) = text.strip_prefix("<!--") {
            // `<!-->` and `<!--->` are whole comments (WHATWG HTML, 13.2.5.43 and 44).
            if let Some(whole) = ["<!-->", "<!--->"].into_iter().find(|whole| text.starts_with(whole)) {
                return Markup::Comment(whole.len());
            }
            return Markup::Comment(comment.find("-->").map_or(text.len(), |end| end + "<!---->".len()));
        }
        let closes = text.starts_with("</");
        let inner = &text[1 + usize::from(closes)..];
        match inner.as_bytes().first() {
            Some(byte) if byte.is_ascii_alphabetic() => {}
            Some(b'!' | b'?') => return Markup::Comment(text.find('>').map_or(text.len(), |end| end + 1)),
            _ => return Markup::Text,
        }
        let length = inner.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'-').count();
        Markup::Tag { name: inner[..length].to_ascii_lowercase(), closes, end: ends.find(text) }
    }
}

/// Ends of the tags of a page.
#[derive(Default)]
struct TagEnds {
    /// If `true`, every `>` ends a tag.
    ignore_quotes: bool,
}

impl TagEnds {
    /// Returns the length of the tag at the beginning of `tag`, which is the rest of the page. A `>` in a quoted value
    /// does not end it, unless all are in quoted values.
    fn find(&mut self, tag: &str) -> usize {
        if !self.ignore_quotes {
            if let Some(end) = end_outside_quotes(tag) {
                return end;
            }
            // The search has read the page to its end. If the next tags did so too, the time would grow with the square
            // of the page.
            self.ignore_quotes = true;
        }
        tag.find('>').map_or(tag.len(), |end| end + 1)
    }
}

/// Returns the length of a tag. `None` if no `>` is outside of quoted values.
fn end_outside_quotes(tag: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in tag.bytes().enumerate() {
        match (quote, byte) {
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'>') => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Splits a text at the closing tag of `name`, which is left out.
fn raw_content<'a>(text: &'a str, name: &str, ends: &mut TagEnds) -> (&'a str, &'a str) {
    for (at, _) in text.match_indices("</") {
        let tag = &text.as_bytes()[at + 2..];
        if tag.get(..name.len()).is_some_and(|found| found.eq_ignore_ascii_case(name.as_bytes())) {
            return (&text[..at], &text[at + ends.find(&text[at..])..]);
        }
    }
    (text, "")
}

/// Text of a page as it is read.
#[derive(Default)]
struct PageText {
    outline: Outline,
    /// Text of the current section, or of the current heading.
    text: String,
    /// Level of the heading that is being read.
    heading: Option<u8>,
    /// Name of the element that hides its content, with the number of elements of this name that are open.
    hidden: Option<(String, u32)>,
    /// Number of `pre` elements that are open.
    preformatted: u32,
    /// White space to write before the next word.
    space: &'static str,
}

impl PageText {
    fn title(&mut self, title: &str) {
        let title = unescaped(title).split_whitespace().collect::<Vec<_>>().join(" ");
        if self.outline.title.is_none() && self.hidden.is_none() && !title.is_empty() {
            self.outline.title = Some(title);
        }
    }

    fn add(&mut self, text: &str) {
        if self.hidden.is_some() {
            return;
        }
        let text = unescaped(text);
        if self.preformatted > 0 {
            self.text.push_str(std::mem::take(&mut self.space));
            self.text.push_str(&text);
            return;
        }
        if text.starts_with(char::is_whitespace) {
            self.space(" ");
        }
        for word in text.split_whitespace() {
            self.text.push_str(std::mem::replace(&mut self.space, " "));
            self.text.push_str(word);
        }
        if !text.ends_with(char::is_whitespace) && !text.is_empty() {
            self.space = "";
        }
    }

    /// Puts white space before the next word. The largest one counts.
    fn space(&mut self, space: &'static str) {
        let rank = |space: &str| (space.matches('\n').count(), space.len());
        if !self.text.is_empty() && rank(space) > rank(self.space) {
            self.space = space;
        }
    }

    fn tag(&mut self, name: &str, closes: bool) {
        if let Some((hiding, open)) = &mut self.hidden {
            if hiding == name {
                *open = if closes { *open - 1 } else { *open + 1 };
            }
            self.hidden.take_if(|(_, open)| *open == 0);
            return;
        }
        if HIDDEN.contains(&name) {
            self.hidden = (!closes).then(|| (name.to_owned(), 1));
            return;
        }
        let level = name.strip_prefix('h').and_then(|level| level.parse().ok()).filter(|level| (1..=6).contains(level));
        match (level, self.heading) {
            (Some(level), None) if !closes => self.begin_heading(level),
            (Some(next), Some(level)) => {
                self.end_heading(level);
                // A heading that begins inside another one ends it, as in browsers.
                if !closes {
                    self.begin_heading(next);
                }
            }
            // A heading is one line, whatever its elements.
            (None, Some(_)) if name == "br" || BLOCKS.contains(&name) => self.space(" "),
            (None, Some(_)) => {}
            _ => self.layout(name, closes),
        }
    }

    fn layout(&mut self, name: &str, closes: bool) {
        match name {
            "br" | "tr" | "option" => self.space("\n"),
            "li" if !closes => self.space(if self.space.starts_with("\n\n") { "\n\n- " } else { "\n- " }),
            "td" | "th" if !closes => self.space(" | "),
            "pre" => {
                let open = self.preformatted;
                self.preformatted = if closes { open.saturating_sub(1) } else { open + 1 };
                self.space("\n\n");
            }
            name if BLOCKS.contains(&name) => self.space("\n\n"),
            _ => {}
        }
    }

    fn begin_heading(&mut self, level: u8) {
        self.outline.add(&std::mem::take(&mut self.text), 1, false);
        self.space = "";
        self.heading = Some(level);
    }

    fn end_heading(&mut self, level: u8) {
        self.outline.enter(level, &std::mem::take(&mut self.text));
        self.space = "";
        self.heading = None;
    }

    fn finish(mut self) -> Result<Sections, ProseFault> {
        self.outline.add(&self.text, 1, false);
        self.outline.finish()
    }
}

/// Replaces character references by their characters; unknown ones stay as they are.
fn unescaped(text: &str) -> Cow<'_, str> {
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
            Some((end, character)) => {
                out.push_str(&character);
                rest = &rest[end + 1..];
            }
            None => out.push('&'),
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn reference(name: &str) -> Option<String> {
    htmlescape::decode_html(&format!("&{name};")).ok().filter(|decoded| decoded != "\0")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::*;

    fn texts(page: &str) -> (String, Vec<(String, String)>) {
        let (title, sections) = sections(page.as_bytes(), false).ok().unwrap();
        let sections = sections.into_iter().map(|section| (section.headings.join("/"), section.text));
        (title, sections.collect())
    }

    #[test]
    fn a_page_is_read_in_sections() {
        let page = "<!DOCTYPE html><html><head><title>Caf&eacute; &amp; Bar</title><style>p > a {}</style></head><body>\
                    <nav><ul><li>Home</ul></nav><p>One <b>bold</b>word&nbsp;here.</p><!-- <h1>no</h1> --><p>Two</p>\
                    <h1 class='a>b'>The\n <i>Head</i></h1>text<script>if (a < b) '</p>'</script><ul><li>x<li>y</ul>\
                    <h2>Sub</h2><pre>a\n  b</pre><table><tr><td>1<td>2</tr><tr><td>3</table>3 < 4 &#x41;&bogus;</body>";
        let (title, sections) = texts(page);
        assert_eq!(title, "Café & Bar");
        let expected = [
            ("", "One boldword here.\n\nTwo"),
            ("The Head", "text\n\n- x\n- y"),
            ("The Head/Sub", "a\n  b\n\n1 | 2\n3\n\n3 < 4 A&bogus;"),
        ];
        for ((headings, text), (expected_headings, expected_text)) in sections.iter().zip(expected) {
            assert_eq!((headings.as_str(), text.as_str()), (expected_headings, expected_text));
        }
        assert_eq!(sections.len(), expected.len(), "{sections:?}");
    }

    #[test]
    fn what_is_broken_is_read_as_far_as_it_goes() {
        for (page, expected) in [
            ("<p", ""),
            ("a <b class=\"x>c", "a c"),
            ("a<!-- b", "a"),
            ("a<!-->b-->", "ab-->"),
            ("a<!--->b", "ab"),
            ("a<!---->b", "ab"),
            ("<script>a", ""),
            ("</p></h1>a", "a"),
            ("<title>t", ""),
            ("<h1>only", "only"),
            ("&#0;&#xffffffff;&", "&#0;&#xffffffff;&"),
        ] {
            let (_, sections) = texts(page);
            let text: String = sections.into_iter().map(|(_, text)| text).collect();
            assert_eq!(text.trim(), expected, "{page}");
        }
    }

    #[test]
    fn a_heading_that_is_not_closed_loses_no_text() {
        let (title, sections) = texts("<h1>Head<h2>Sub</h2>text");
        assert_eq!((title.as_str(), sections), ("Head", vec![("Head/Sub".to_owned(), "text".to_owned())]));
        let long = "word ".repeat(100);
        let (title, sections) = texts(&format!("<h1>{long}<h2>Sub</h2>text"));
        assert_eq!(title.chars().count(), 200);
        assert_eq!(sections.len(), 2);
        assert_eq!(sections[0].1, long.trim_end());
    }

    #[test]
    fn tags_that_end_only_in_quoted_values_take_no_long_time() {
        let started = Instant::now();
        let (_, sections) = texts(&"<a \">\"b".repeat(200_000));
        assert!(sections[0].1.starts_with("\"b\"b"), "the text is kept");
        // Generous, for slow machines under load. A search to the end of the page for each tag takes minutes.
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    }

    #[test]
    fn a_page_in_another_encoding_is_decoded() {
        for page in
            [&b"<meta charset=\"iso-8859-1\"><p>caf\xe9"[..], b"<p>caf\xe9", b"\xff\xfe<\0p\0>\0c\0a\0f\0\xe9\0"]
        {
            assert_eq!(sections(page, false).ok().unwrap().1[0].text, "café");
        }
    }

    #[test]
    fn tags_that_are_closed_at_once_hide_nothing_in_xhtml() {
        let page = "<title/><script src=\"a.js\"/><style />text<script>hidden</script>";
        let text = |page: &str, is_xhtml| {
            let sections = sections(page.as_bytes(), is_xhtml).ok().unwrap().1;
            sections.into_iter().map(|section| section.text).collect::<String>()
        };
        assert_eq!(text(page, true), "text");
        assert_eq!(text(&format!("<?xml version=\"1.0\"?>\n{page}"), false), "text");
        // In HTML, the slash has no meaning.
        assert_eq!(text(page, false), "");
    }
}
