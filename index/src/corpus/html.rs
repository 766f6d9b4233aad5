//! Reads the text of HTML: its sections under their headings, without scripts, styles and navigation.
//!
//! Reads tags one after the other and builds no tree, so deep nesting costs nothing and any input gives some text.

use std::borrow::Cow;

use encoding_rs::{Encoding, ISO_2022_JP, WINDOWS_1252};

use super::html_references::unescaped;
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
    let mut unread = Some(&*page);
    while let Some(rest) = unread {
        read(rest, is_xhtml, &mut ends, &mut text);
        unread = text.reveal();
    }
    text.finish()
}

/// Reads the rest of a page.
fn read<'p>(mut rest: &'p str, is_xhtml: bool, ends: &mut TagEnds, text: &mut PageText<'p>) {
    while let Some(at) = rest.find('<') {
        text.add(&rest[..at]);
        rest = &rest[at..];
        rest = match Markup::of(rest, ends) {
            Markup::Text => {
                text.add("<");
                &rest[1..]
            }
            Markup::Comment(end) => &rest[end..],
            Markup::Tag { name, closes, end } => {
                let behind = &rest[end..];
                let is_empty = rest[..end].ends_with("/>");
                if !closes && RAW.contains(&name.as_str()) && !(is_xhtml && is_empty) {
                    let (content, behind) = raw_content(behind, &name, ends);
                    if name == "title" {
                        text.title(content);
                    }
                    behind
                } else {
                    // `<svg/>` has no content to hide.
                    if !(HIDDEN.contains(&name.as_str()) && is_empty) {
                        text.tag(&name, closes, behind);
                    }
                    behind
                }
            }
        };
    }
    text.add(rest);
}

/// Decodes a page: UTF-8, or else what its byte order mark or `charset` names, or else Windows-1252 as in browsers.
fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    let named = named_encoding(bytes);
    // A page in this encoding has only bytes of ASCII, so it is valid UTF-8 as well.
    let is_japanese = named == Some(ISO_2022_JP) && bytes.is_ascii();
    if Encoding::for_bom(bytes).is_none()
        && !is_japanese
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return Cow::Borrowed(text);
    }
    named.unwrap_or(WINDOWS_1252).decode(bytes).0
}

/// Returns the encoding that the `charset` of a page names.
fn named_encoding(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(1024)]).to_ascii_lowercase();
    let named = head.split("charset=").nth(1).map(|label| label.trim_start_matches(['"', '\'']));
    let label = named.and_then(|label| label.split(['"', '\'', ';', '>', ' ', '/']).next()).unwrap_or_default();
    Encoding::for_label(label.as_bytes())
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

/// Position within a tag.
#[derive(Clone, Copy)]
enum TagPosition {
    /// Outside of values.
    Names,
    /// Place between a `=` and the value.
    Equals,
    UnquotedValue,
    /// In a value that this quotation mark ends.
    QuotedValue(u8),
}

/// Returns the length of a tag. `None` if no `>` is outside of quoted values. A quotation mark that does not begin a
/// value has no meaning, as in browsers (WHATWG HTML, 13.2.5.33 to 39).
fn end_outside_quotes(tag: &str) -> Option<usize> {
    let mut position = TagPosition::Names;
    for (at, byte) in tag.bytes().enumerate() {
        position = match (position, byte) {
            (TagPosition::QuotedValue(quote), _) if byte == quote => TagPosition::Names,
            (TagPosition::QuotedValue(_), _) => position,
            (_, b'>') => return Some(at + 1),
            (TagPosition::Names, b'=') => TagPosition::Equals,
            (TagPosition::Equals, b'"' | b'\'') => TagPosition::QuotedValue(byte),
            (TagPosition::Equals, _) if !byte.is_ascii_whitespace() => TagPosition::UnquotedValue,
            (TagPosition::UnquotedValue, _) if byte.is_ascii_whitespace() => TagPosition::Names,
            _ => position,
        };
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

/// Element that hides its content.
struct HiddenElement<'p> {
    name: String,
    /// Number of elements of this name that are open.
    open: u32,
    /// Rest of the page from the content of the element on.
    content: &'p str,
}

/// Text of a page as it is read.
#[derive(Default)]
struct PageText<'p> {
    outline: Outline,
    /// Text of the current section, or of the current heading.
    text: String,
    /// Level of the heading that is being read.
    heading: Option<u8>,
    /// Element that hides the text being read.
    hidden: Option<HiddenElement<'p>>,
    /// Names of elements that hide nothing in the rest of the page, because one was never closed.
    revealed: Vec<String>,
    /// Number of `pre` elements that are open.
    preformatted: u32,
    /// White space to write before the next word.
    space: &'static str,
}

impl<'p> PageText<'p> {
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

    /// Applies a tag, which the text `behind` follows.
    fn tag(&mut self, name: &str, closes: bool, behind: &'p str) {
        if let Some(hidden) = &mut self.hidden {
            if hidden.name == name {
                hidden.open = match closes {
                    true => hidden.open - 1,
                    // A button within a button ends the outer one, so a single end tag suffices.
                    false if name == "button" => hidden.open,
                    false => hidden.open + 1,
                };
            }
            self.hidden.take_if(|hidden| hidden.open == 0);
            return;
        }
        if HIDDEN.contains(&name) {
            if !closes && !self.revealed.iter().any(|revealed| revealed == name) {
                self.hidden = Some(HiddenElement { name: name.to_owned(), open: 1, content: behind });
            }
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

    /// Ends a page. If an element that hides its content was never closed, returns the rest of the page from that content
    /// on: browsers close such an element with the one around it, so what follows is text. Elements of this name hide
    /// nothing from there on, so a page is read again only once per name.
    fn reveal(&mut self) -> Option<&'p str> {
        let HiddenElement { name, content, .. } = self.hidden.take()?;
        self.revealed.push(name);
        Some(content)
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
            ("<td a=\"5\"\">A</td><td a=\"5\"\">B</td>", "A | B"),
            ("<p t=it's>A</p><p>don't</p>", "A\n\ndon't"),
            ("<p \">A</p><p t = '>' u=v\">B", "A\n\nB"),
            ("<div><nav>x</div>text <nav>y</nav>z", "x\n\ntext yz"),
            ("<nav>x<nav>y</nav>text<svg>z<select>a", "xytextza"),
            ("<button>x<button>y</button>text", "text"),
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
        let (_, sections) = texts(&"<a c=\">\"b".repeat(200_000));
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
        let japanese = b"<meta charset=\"iso-2022-jp\"><p>\x1b$B$3$s\x1b(B";
        assert_eq!(sections(japanese, false).ok().unwrap().1[0].text, "こん");
        let other = "<meta charset=\"iso-2022-jp\"><p>café";
        assert_eq!(sections(other.as_bytes(), false).ok().unwrap().1[0].text, "café", "it is not 7-bit");
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
