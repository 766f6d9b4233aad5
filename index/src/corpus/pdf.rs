//! Reads the text of PDF, page by page.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lopdf::{Document, Object};

use super::pdf_text::PageReader;
use super::prose::{ProseFault, Section, Sections};
use super::read_limits::ReadLimits;
use super::{LONGEST_RECORD, pdf_objects};

/// Maximum bytes of the contents of all pages, decompressed. Pages may share one content, so even a small file can have
/// any number of pages.
const LARGEST_CONTENTS: usize = 1 << 30;

/// Maximum memory of the objects of a file, approximately, in bytes.
const LARGEST_OBJECTS: u64 = 2 << 30;

/// Returns the title that the file names, if any, and one section per page.
pub(super) fn sections(bytes: &[u8], limits: &ReadLimits) -> Result<Sections, ProseFault> {
    // The parser of another crate reads untrusted bytes: a panic in it means a damaged file, and must not end a build.
    catch_unwind(AssertUnwindSafe(|| pages(bytes, limits)))
        .unwrap_or_else(|_| Err(ProseFault::Damaged("the PDF file cannot be read: it is damaged".to_owned())))
}

fn pages(bytes: &[u8], limits: &ReadLimits) -> Result<Sections, ProseFault> {
    let document = pdf_objects::load(bytes, LARGEST_OBJECTS, limits)?;
    let mut left = LONGEST_RECORD;
    let mut contents = LARGEST_CONTENTS;
    let mut reader = PageReader::new(&document, limits);
    let mut sections = Vec::new();
    for (number, page) in document.get_pages() {
        let text = reader.page(page, &mut contents);
        // A page whose reading was ended is not damaged.
        limits.check()?;
        let text = text
            .map_err(|error| ProseFault::Damaged(format!("page {number} of the PDF file cannot be read: {error}")))?;
        left = left.checked_sub(text.len()).ok_or_else(|| {
            ProseFault::Unsupported(format!("the PDF file holds more than {LONGEST_RECORD} bytes of text: split it"))
        })?;
        if text.chars().any(char::is_alphanumeric) {
            let text = joined(&text);
            sections.push(Section { page: Some(number), line: 1, text, ..Section::default() });
        }
    }
    if sections.is_empty() {
        let message = "the PDF file holds no text: if its pages are images, recognize their text (OCR) first";
        return Err(ProseFault::Unsupported(message.to_owned()));
    }
    Ok((title(&document).unwrap_or_default(), sections))
}

fn title(document: &Document) -> Option<String> {
    let info = document.trailer.get(b"Info").ok()?;
    let (_, info) = document.dereference(info).ok()?;
    let Object::Dictionary(info) = info else { return None };
    let (_, title) = document.dereference(info.get(b"Title").ok()?).ok()?;
    lopdf::decode_text_string(title).ok()
}

/// Joins words that are hyphenated at the end of a line.
fn joined(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines().map(str::trim_end) {
        let hyphenated = out.strip_suffix("-\n").is_some_and(|before| before.ends_with(char::is_lowercase));
        if hyphenated && line.starts_with(char::is_lowercase) {
            out.truncate(out.len() - "-\n".len());
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::{Duration, Instant};

    use super::super::pdf_objects::tests::encrypted;
    use super::super::read_limits::tests::steps;
    use super::*;

    /// Reads a file without limits.
    fn sections(bytes: &[u8]) -> Result<Sections, ProseFault> {
        super::sections(bytes, &ReadLimits::default())
    }

    /// File of one page per text, with a cross-reference table.
    fn file(texts: &[&str]) -> Vec<u8> {
        let kids: Vec<String> = (0..texts.len()).map(|page| format!("{} 0 R", 10 + 2 * page)).collect();
        let mut out = format!(
            "%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n2 0 obj\n<</Type/Pages/Kids[{}]/Count {}>>\nendobj\n\
             3 0 obj\n<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>\nendobj\n\
             4 0 obj\n<</Title(The Title)>>\nendobj\n",
            kids.join(" "),
            texts.len()
        );
        for (page, text) in texts.iter().enumerate() {
            let content = format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET");
            let number = 10 + 2 * page;
            out += &format!(
                "{number} 0 obj\n<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>\
                 /Contents {} 0 R>>\nendobj\n{} 0 obj\n<</Length {}>>\nstream\n{content}\nendstream\nendobj\n",
                number + 1,
                number + 1,
                content.len()
            );
        }
        with_table(out)
    }

    /// Adds the cross-reference table and the trailer.
    fn with_table(mut out: String) -> Vec<u8> {
        let mut offsets: Vec<(usize, usize)> = Vec::new();
        for (at, _) in out.match_indices(" 0 obj\n") {
            let start = out[..at].rfind('\n').map_or(0, |line| line + 1);
            offsets.push((out[start..at].parse().unwrap(), start));
        }
        let start = out.len();
        let size = 1 + offsets.iter().map(|(number, _)| *number).max().unwrap();
        out += "xref\n0 1\n0000000000 65535 f \n";
        for (number, offset) in offsets {
            out += &format!("{number} 1\n{offset:010} 00000 n \n");
        }
        out += &format!("trailer\n<</Size {size}/Root 1 0 R/Info 4 0 R>>\nstartxref\n{start}\n%%EOF\n");
        out.into_bytes()
    }

    #[test]
    fn every_page_is_a_section() {
        let (title, found) = sections(&file(&["The Seine flows through Paris.", "", "Page three."])).ok().unwrap();
        assert_eq!(title, "The Title");
        let found: Vec<_> = found.iter().map(|section| (section.page, section.text.trim())).collect();
        assert_eq!(found, [(Some(1), "The Seine flows through Paris."), (Some(3), "Page three.")]);
    }

    #[test]
    fn lengths_may_be_objects() {
        let direct = String::from_utf8(file(&["The Seine."])).unwrap();
        let (objects, _) = direct.split_once("xref\n").unwrap();
        let (before, rest) = objects.split_once("/Length ").unwrap();
        let (length, after) = rest.split_once(">>").unwrap();
        let indirect = format!("{before}/Length 5 0 R>>{after}5 0 obj\n{length}\nendobj\n");
        let (_, found) = sections(&with_table(indirect)).ok().unwrap();
        assert_eq!(found[0].text.trim(), "The Seine.");
    }

    #[test]
    fn encrypted_files_are_read_unless_they_need_a_password() {
        let document = || Document::load_mem(&file(&["The Seine."])).unwrap();
        let (title, found) = sections(&encrypted(document(), "")).ok().unwrap();
        assert_eq!((title.as_str(), found[0].text.trim()), ("The Title", "The Seine."));
        let locked = sections(&encrypted(document(), "secret"));
        assert!(matches!(locked, Err(ProseFault::Unsupported(message)) if message.contains("remove its password")));
    }

    #[test]
    fn lines_and_words_are_told_apart_by_their_positions() {
        let show = "one) Tj 0 -14 Td (two) Tj 20 0 Td (three) Tj [(fo) 20 (ur) -300.5 (five)] TJ T* (six";
        let (_, found) = sections(&file(&[show])).ok().unwrap();
        assert_eq!(found[0].text.trim(), "one\ntwo threefour five\nsix");
    }

    #[test]
    fn what_has_no_text_is_told_apart_from_what_is_damaged() {
        assert!(matches!(sections(&file(&[""])), Err(ProseFault::Unsupported(message)) if message.contains("OCR")));
        assert!(matches!(sections(b"%PDF-1.4\nnothing"), Err(ProseFault::Damaged(_))));
        assert!(matches!(sections(b""), Err(ProseFault::Damaged(_))));
    }

    #[test]
    fn a_page_with_too_much_content_is_refused() {
        let text = "one) Tj (".repeat((16 << 20) / 9 + 1);
        let refused = sections(&file(&["Page one.", &text]));
        assert!(matches!(refused, Err(ProseFault::Damaged(message)) if message.starts_with("page 2 of the PDF file")));
    }

    #[test]
    fn pages_that_share_many_fonts_take_no_long_time() {
        const MANY: usize = 20_000;
        let kids: String = (0..MANY).map(|page| format!("{} 0 R ", 10 + page)).collect();
        let fonts: String = (0..MANY).map(|font| format!("/F{font} 3 0 R")).collect();
        let mut out = format!(
            "%PDF-1.4\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n2 0 obj\n<</Type/Pages/Kids[{kids}]/Count {MANY}>>\n\
             endobj\n3 0 obj\n<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>\nendobj\n\
             4 0 obj\n<</Title(The Title)>>\nendobj\n5 0 obj\n<</Font<<{fonts}>>>>\nendobj\n6 0 obj\n<</Length 40>>\nstream\n\
             BT /F7 12 Tf 72 720 Td (The Seine.) Tj  \nendstream\nendobj\n"
        );
        for page in 0..MANY {
            // Only the last page has content.
            let contents = if page == MANY - 1 { "/Contents 6 0 R" } else { "" };
            out += &format!("{} 0 obj\n<</Type/Page/Parent 2 0 R/Resources 5 0 R{contents}>>\nendobj\n", 10 + page);
        }
        let started = Instant::now();
        let (_, found) = sections(&with_table(out)).ok().unwrap();
        assert_eq!((found.len(), found[0].page, found[0].text.trim()), (1, Some(MANY as u32), "The Seine."));
        // Generous, for slow machines under load. A look at all fonts of each page takes minutes.
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    }

    #[test]
    fn a_reading_can_be_ended_at_every_step() {
        let bytes = file(&["The Seine.", "Page two."]);
        let (limits, count) = steps(usize::MAX);
        assert!(super::sections(&bytes, &limits).is_ok());
        let all = count.load(SeqCst);
        // Each of eight objects; and of each page its content, its font and its end.
        assert!(all >= 8 + 2 * 3, "{all}");
        for most in 0..all {
            let ended = super::sections(&bytes, &steps(most).0);
            assert!(matches!(ended, Err(ProseFault::Stopped(_))), "{most}");
        }
    }

    #[test]
    fn hyphens_at_the_ends_of_lines_are_joined() {
        assert_eq!(joined("a long-\nish word\nA-\nB"), "a longish word\nA-\nB\n");
    }
}
