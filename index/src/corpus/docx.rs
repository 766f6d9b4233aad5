//! Reads the text of DOCX: its sections under their headings, tables row by row.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use zip::ZipArchive;
use zip::result::ZipError;

use super::LONGEST_RECORD;
use super::outline::Outline;
use super::prose::{ProseFault, Sections};

/// Returns the first heading of level 1 as the title, and the sections.
pub(super) fn sections(bytes: &[u8]) -> Result<Sections, ProseFault> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| damaged(&error))?;
    let styles = part(&mut archive, "word/styles.xml")?.map(|xml| heading_styles(&xml)).transpose()?;
    let document = part(&mut archive, "word/document.xml")?
        .ok_or_else(|| ProseFault::Damaged("not a DOCX file: word/document.xml is missing".to_owned()))?;
    text(&document, &styles.unwrap_or_default())
}

fn damaged(error: &dyn std::fmt::Display) -> ProseFault {
    ProseFault::Damaged(format!("not a readable DOCX file: {error}"))
}

/// Reads a file of the archive. `None` if there is none of this name.
fn part(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str) -> Result<Option<String>, ProseFault> {
    let file = match archive.by_name(name) {
        Err(ZipError::FileNotFound) => return Ok(None),
        other => other.map_err(|error| damaged(&error))?,
    };
    let mut text = String::new();
    // The size in the archive's directory may be forged.
    let read = file.take(LONGEST_RECORD as u64 + 1).read_to_string(&mut text).map_err(|error| damaged(&error))?;
    if read > LONGEST_RECORD {
        return Err(ProseFault::Unsupported(format!(
            "{name} in it is longer than {LONGEST_RECORD} bytes: split the file"
        )));
    }
    Ok(Some(text))
}

/// Returns the levels of the heading styles, by the ID of the style. IDs depend on the language of the program that
/// wrote the file; names do not.
fn heading_styles(xml: &str) -> Result<HashMap<String, u8>, ProseFault> {
    let mut reader = Reader::from_str(xml);
    let mut styles = HashMap::new();
    let mut id = String::new();
    loop {
        match reader.read_event().map_err(|error| damaged(&error))? {
            Event::Start(tag) if tag.local_name().as_ref() == "style" => {
                id = attribute(&tag, "w:styleId").unwrap_or_default();
            }
            Event::Start(tag) | Event::Empty(tag) if tag.local_name().as_ref() == "name" => {
                if let Some(level) = attribute(&tag, "w:val").and_then(|name| named_level(&name)) {
                    styles.insert(id.clone(), level);
                }
            }
            Event::Eof => return Ok(styles),
            _ => {}
        }
    }
}

fn named_level(style: &str) -> Option<u8> {
    let style = style.to_lowercase();
    match style.strip_prefix("heading ") {
        Some(level) => level.parse().ok().filter(|level| (1..=9).contains(level)),
        None => (style == "title").then_some(1),
    }
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    tag.try_get_attribute(name).ok()?.map(|attribute| attribute.value.into_owned())
}

/// Elements whose content is left out: `Fallback` repeats the content beside it for older programs, `del` and
/// `moveFrom` hold what is no longer there, and `pPrChange` holds the former properties of a paragraph.
const IGNORED: &[&str] = &["Fallback", "del", "moveFrom", "pPrChange"];

/// Maximum depth of paragraphs within the text boxes of other paragraphs.
const DEEPEST_PARAGRAPH: usize = 64;

/// Reads the paragraphs of `word/document.xml`.
fn text(xml: &str, styles: &HashMap<String, u8>) -> Result<Sections, ProseFault> {
    let mut reader = Reader::from_str(xml);
    let mut body = Body {
        styles,
        outline: Outline::default(),
        text: String::new(),
        boxes: String::new(),
        paragraph: Paragraph::default(),
        outer: Vec::new(),
        cells: 0,
    };
    let mut in_text = false;
    // Number of `IGNORED` elements that are open.
    let mut ignored = 0_u32;
    loop {
        match reader.read_event().map_err(|error| damaged(&error))? {
            Event::Start(tag) => match tag.local_name().as_ref() {
                name if IGNORED.contains(&name) => ignored += 1,
                "t" => in_text = ignored == 0,
                _ if ignored > 0 => {}
                "p" => body.begin_paragraph()?,
                "tc" => body.cells += 1,
                _ => body.property(&tag),
            },
            Event::Empty(tag) if ignored == 0 => body.property(&tag),
            Event::End(tag) => match tag.local_name().as_ref() {
                name if IGNORED.contains(&name) => ignored = ignored.saturating_sub(1),
                "t" => in_text = false,
                _ if ignored > 0 => {}
                "p" => body.end_paragraph(),
                "tc" => body.end_cell(),
                "tr" | "tbl" => body.output().push('\n'),
                _ => {}
            },
            Event::Text(words) if in_text => body.paragraph.text.push_str(&words.xml10_content()),
            Event::CData(words) if in_text => body.paragraph.text.push_str(&words.xml10_content()),
            Event::GeneralRef(name) if in_text => {
                let character = name.resolve_char_ref().ok().flatten().map(String::from);
                let named = || quick_xml::escape::resolve_xml_entity(&name).map(str::to_owned);
                body.paragraph.text.push_str(&character.or_else(named).unwrap_or_default());
            }
            Event::Eof => break,
            _ => {}
        }
    }
    body.outline.add(&body.text, 1, false);
    body.outline.finish()
}

#[derive(Default)]
struct Paragraph {
    text: String,
    /// Level of the heading. `None` for other paragraphs.
    level: Option<u8>,
}

/// Text of a document as it is read.
struct Body<'a> {
    styles: &'a HashMap<String, u8>,
    outline: Outline,
    /// Text of the current section.
    text: String,
    /// Text of the boxes that the open paragraph holds. It is put behind the paragraph.
    boxes: String,
    /// Innermost paragraph that is open.
    paragraph: Paragraph,
    /// Paragraphs around it. A text box holds paragraphs within another one.
    outer: Vec<Paragraph>,
    /// Number of cells that are open.
    cells: u32,
}

impl Body<'_> {
    fn property(&mut self, tag: &BytesStart<'_>) {
        match tag.local_name().as_ref() {
            // A `tab` with a value defines a tab stop.
            "tab" if attribute(tag, "w:val").is_none() => self.paragraph.text.push('\t'),
            "br" | "cr" => self.paragraph.text.push('\n'),
            "noBreakHyphen" => self.paragraph.text.push('-'),
            "pStyle" => {
                let style = attribute(tag, "w:val");
                self.paragraph.level = style.and_then(|style| self.styles.get(&style).copied());
            }
            "outlineLvl" => {
                let level = attribute(tag, "w:val").and_then(|level| level.parse::<u8>().ok());
                self.paragraph.level = level.filter(|level| *level < 9).map(|level| level + 1).or(self.paragraph.level);
            }
            _ => {}
        }
    }

    fn begin_paragraph(&mut self) -> Result<(), ProseFault> {
        if self.outer.len() == DEEPEST_PARAGRAPH {
            return Err(ProseFault::Unsupported(format!(
                "its text boxes nest more than {DEEPEST_PARAGRAPH} levels deep: move their text out of them"
            )));
        }
        self.outer.push(std::mem::take(&mut self.paragraph));
        Ok(())
    }

    fn end_paragraph(&mut self) {
        let outer = self.outer.pop().unwrap_or_default();
        let Paragraph { text, level } = std::mem::replace(&mut self.paragraph, outer);
        match level {
            Some(level) if self.cells == 0 && !text.trim().is_empty() => {
                self.outline.add(&std::mem::take(&mut self.text), 1, false);
                self.outline.enter(level, &text);
            }
            _ => {
                let end = if self.cells == 0 { "\n\n" } else { " " };
                let output = self.output();
                output.push_str(text.trim_end());
                output.push_str(end);
            }
        }
        if self.outer.is_empty() {
            self.text.push_str(&std::mem::take(&mut self.boxes));
        }
    }

    fn end_cell(&mut self) {
        self.cells = self.cells.saturating_sub(1);
        self.output().push_str("| ");
    }

    /// Returns the text to which what is read belongs.
    fn output(&mut self) -> &mut String {
        if self.outer.is_empty() { &mut self.text } else { &mut self.boxes }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn archive(parts: &[(&str, &str)]) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in parts {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(content.as_bytes()).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn paragraph(style: &str, text: &str) -> String {
        format!(
            "<w:p><w:pPr><w:pStyle w:val=\"{style}\"/></w:pPr><w:r><w:t xml:space=\"preserve\">{text}</w:t></w:r></w:p>"
        )
    }

    #[test]
    fn a_document_is_read_in_sections() {
        let styles = "<w:styles><w:style w:styleId=\"berschrift1\"><w:name w:val=\"heading 1\"/></w:style>\
                      <w:style w:styleId=\"H2\"><w:name w:val=\"Heading 2\"/></w:style></w:styles>";
        let table = "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>1</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>2</w:t></w:r></w:p></w:tc></w:tr></w:tbl>";
        let document = [
            "<w:document><w:body>",
            &paragraph("berschrift1", "Head"),
            &paragraph("Normal", "a &amp; b &#x41;"),
            "<w:p><w:r><w:t>one</w:t><w:br/><w:t>two</w:t><w:delText>gone</w:delText></w:r></w:p>",
            &paragraph("H2", "Sub"),
            table,
            "</w:body></w:document>",
        ];
        let (title, found) =
            sections(&archive(&[("word/styles.xml", styles), ("word/document.xml", &document.concat())])).ok().unwrap();
        assert_eq!((title.as_str(), found.len()), ("Head", 2));
        assert_eq!((found[0].headings.join("/"), found[0].text.trim()), ("Head".to_owned(), "a & b A\n\none\ntwo"));
        assert_eq!((found[1].headings.join("/"), found[1].text.trim()), ("Head/Sub".to_owned(), "1 | 2 |"));
    }

    #[test]
    fn of_a_changed_document_the_newest_state_is_read() {
        let styles = "<w:styles><w:style w:styleId=\"H1\"><w:name w:val=\"heading 1\"/></w:style></w:styles>";
        let document = "<w:document><w:body>\
            <w:p><w:pPr><w:pStyle w:val=\"H1\"/><w:pPrChange w:id=\"1\"><w:pPr><w:pStyle w:val=\"Normal\"/></w:pPr>\
            </w:pPrChange></w:pPr><w:r><w:t>Head</w:t></w:r></w:p>\
            <w:p><w:pPr><w:pPrChange w:id=\"2\"><w:pPr><w:outlineLvl w:val=\"0\"/></w:pPr></w:pPrChange></w:pPr>\
            <w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>mail</w:t></w:r>\
            <w:moveFrom w:id=\"3\"><w:r><w:t>moved away</w:t><w:br/></w:r></w:moveFrom>\
            <w:del w:id=\"4\"><w:r><w:noBreakHyphen/><w:delText>gone</w:delText></w:r></w:del>\
            <w:moveTo w:id=\"5\"><w:r><w:t> kept</w:t></w:r></w:moveTo></w:p></w:body></w:document>";
        let parts = [("word/styles.xml", styles), ("word/document.xml", document)];
        let (title, found) = sections(&archive(&parts)).ok().unwrap();
        assert_eq!((title.as_str(), found.len()), ("Head", 1));
        assert_eq!(found[0].text.trim(), "e-mail kept");
    }

    #[test]
    fn text_boxes_come_behind_the_paragraph_that_holds_them() {
        let styles = "<w:styles><w:style w:styleId=\"H1\"><w:name w:val=\"heading 1\"/></w:style></w:styles>";
        let framed = |content: &str| {
            let content = format!("<w:txbxContent>{content}</w:txbxContent>");
            format!(
                "<w:r><mc:AlternateContent><mc:Choice>{content}</mc:Choice><mc:Fallback>{content}</mc:Fallback>\
                 </mc:AlternateContent></w:r>"
            )
        };
        let words = |words: &str| format!("<w:r><w:t>{words}</w:t></w:r>");
        let style = "<w:pPr><w:pStyle w:val=\"H1\"/></w:pPr>";
        let cell = |text: &str| format!("<w:tc><w:p>{}</w:p></w:tc>", words(text));
        let table = format!("<w:tbl><w:tr>{}{}</w:tr></w:tbl>", cell("1"), cell("2"));
        let document = [
            "<w:document><w:body>",
            &format!("<w:p>{}{}</w:p>", words("before"), framed(&paragraph("Normal", "aside"))),
            &format!("<w:p>{style}{}{}</w:p>", framed(&paragraph("Normal", "Draft")), words("Safety rules")),
            &format!("<w:p>{}{}</w:p>", framed(&table), words("last")),
            "</w:body></w:document>",
        ];
        let parts = |document: &str| archive(&[("word/styles.xml", styles), ("word/document.xml", document)]);
        let (title, found) = sections(&parts(&document.concat())).ok().unwrap();
        let found: Vec<_> = found.iter().map(|section| (section.headings.join("/"), section.text.trim())).collect();
        assert_eq!(title, "Safety rules");
        assert_eq!(
            found,
            [(String::new(), "before\n\naside"), ("Safety rules".to_owned(), "Draft\n\nlast\n\n1 | 2 |")]
        );
        let deep = format!("{}{}", "<w:p>".repeat(100), "</w:p>".repeat(100));
        assert!(matches!(sections(&parts(&deep)), Err(ProseFault::Unsupported(_))));
    }

    #[test]
    fn what_is_no_document_is_refused() {
        for bytes in [b"PK\x03\x04".to_vec(), archive(&[("a.txt", "")]), archive(&[("word/document.xml", "<a></b>")])] {
            assert!(matches!(sections(&bytes), Err(ProseFault::Damaged(_))));
        }
        let bomb = archive(&[("word/document.xml", &" ".repeat(LONGEST_RECORD + 1))]);
        assert!(bomb.len() < 1 << 20);
        assert!(matches!(sections(&bomb), Err(ProseFault::Unsupported(_))));
    }
}
