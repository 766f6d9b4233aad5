//! Splits Markdown into sections at its headings.

use std::ops::Range;

use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

use super::outline::Outline;
use super::prose::{ProseFault, Sections, line_breaks};

/// Returns the title, which is that of the front matter or else the first heading of level 1, and the sections. A
/// heading with nothing below it gives no section.
///
/// # Errors
/// If the sections are too large with the headings above each.
pub(super) fn sections(text: &str) -> Result<Sections, ProseFault> {
    let front = front_matter(text);
    let (block, body) = text.split_at(front);
    let mut outline = Outline::default();
    outline.title = front_title(block);
    let mut cut = SectionCut { text, outline, start: front, counted: 0, line: 1 };
    let mut depth = 0_usize;
    let mut heading: Option<String> = None;
    // The parser's own option takes a rule followed by text for front matter, anywhere in the file.
    for (event, range) in Parser::new(body).into_offset_iter() {
        match event {
            // A heading within a list or quotation begins no section.
            Event::Start(Tag::Heading { .. }) if depth == 0 => heading = Some(String::new()),
            Event::End(TagEnd::Heading(level)) if depth == 0 => {
                let words = heading.take().unwrap_or_default();
                cut.enter(level, &words, front + range.start..front + range.end);
            }
            Event::Text(words) | Event::Code(words) => heading.iter_mut().for_each(|heading| heading.push_str(&words)),
            Event::SoftBreak | Event::HardBreak => heading.iter_mut().for_each(|heading| heading.push(' ')),
            Event::Start(_) if heading.is_none() => depth += 1,
            Event::End(_) if heading.is_none() => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    cut.close(text.len());
    cut.outline.finish()
}

struct SectionCut<'a> {
    text: &'a str,
    outline: Outline,
    /// Byte at which the current section begins.
    start: usize,
    /// Byte up to which lines are counted.
    counted: usize,
    /// Line of `counted`.
    line: u64,
}

impl SectionCut<'_> {
    fn close(&mut self, end: usize) {
        self.line += line_breaks(self.text.as_bytes().get(self.counted..self.start).unwrap_or_default());
        self.counted = self.counted.max(self.start);
        self.outline.add(self.text.get(self.start..end).unwrap_or_default(), self.line, true);
    }

    fn enter(&mut self, level: HeadingLevel, heading: &str, range: Range<usize>) {
        self.close(range.start);
        self.start = range.end;
        self.outline.enter(level as u8, heading);
    }
}

/// Returns the length of the YAML front matter of a file, with the blank lines before it. 0 if there is none: a blank
/// line below its first line makes that one a rule.
fn front_matter(text: &str) -> usize {
    let mut lines = text.split_inclusive('\n').scan(0, |end: &mut usize, line| {
        *end += line.len();
        Some((*end, line.trim_end()))
    });
    let opening = lines.find(|(_, line)| !line.is_empty());
    let first = lines.next();
    if opening.is_none_or(|(_, line)| line != "---") || first.is_none_or(|(_, line)| line.is_empty()) {
        return 0;
    }
    let mut rest = first.into_iter().chain(lines);
    rest.find(|(_, line)| matches!(*line, "---" | "...")).map_or(0, |(end, _)| end)
}

/// Returns the value of `title` in YAML front matter.
fn front_title(block: &str) -> Option<String> {
    let value = block.lines().find_map(|line| line.strip_prefix("title:"))?;
    let title = value.trim().trim_matches(['"', '\'']);
    (!title.is_empty()).then(|| title.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sections_know_the_headings_above_them() {
        let text = "intro\n\n# The *Title*\n\n## A\n\n### `b`\n\ntext b\n\n```md\n# no heading\n```\n\n> # quoted\n\nC\n---\ntext c\n\n# Alone\n";
        let (title, sections) = sections(text).ok().unwrap();
        assert_eq!(title, "The Title");
        let found: Vec<_> = sections.iter().map(|section| (section.headings.join("/"), section.text.trim())).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], (String::new(), "intro"));
        assert_eq!(found[1].0, "The Title/A/b");
        assert!(found[1].1.starts_with("text b") && found[1].1.ends_with("> # quoted"), "{found:?}");
        assert_eq!(found[2], ("The Title/C".to_owned(), "text c"));
    }

    #[test]
    fn front_matter_gives_the_title_and_no_section() {
        let text = "---\ntitle: \"From the front\"\ntags: x\n---\n# Heading\ntext\n";
        let (title, sections) = sections(text).ok().unwrap();
        assert_eq!((title.as_str(), sections.len()), ("From the front", 1));
        assert_eq!(sections[0].text.trim(), "text");
        assert_eq!(sections[0].headings, ["Heading"]);
        let (title, sections) = super::sections("\r\n---\r\ntitle: T\r\n...\r\ntext\r\n").ok().unwrap();
        assert_eq!((title.as_str(), sections[0].text.trim(), sections[0].line), ("T", "text", 5));
    }

    #[test]
    fn rules_followed_by_text_lose_nothing() {
        let text = "# Guide\n\nIntro.\n\n---\n## Part one\nText one.\n\n---\n## Part two\nText two.\n";
        let (title, sections) = sections(text).ok().unwrap();
        assert_eq!(title, "Guide");
        let found: Vec<_> = sections.iter().map(|section| (section.headings.join("/"), section.text.trim())).collect();
        let expected = [("Guide", "Intro."), ("Guide/Part one", "Text one."), ("Guide/Part two", "Text two.")];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((headings, text), (expected_headings, begins)) in found.iter().zip(expected) {
            assert!(headings == expected_headings && text.starts_with(begins), "{found:?}");
        }
        // A rule in the first line is none of YAML, and neither is a block without an end.
        for text in ["---\n\nfirst\n\n---\nsecond\n", "---\nfirst\n\nsecond\n", "---", ""] {
            let (_, sections) = super::sections(text).ok().unwrap();
            let kept = sections.iter().all(|section| section.text.trim() == text.trim());
            assert!(kept && sections.len() == usize::from(!text.is_empty()), "{text:?}: {sections:?}");
        }
    }
}
