//! Splits Markdown into sections at its headings.

use std::ops::Range;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::outline::Outline;
use super::prose::{ProseFault, Sections, line_breaks};

/// Returns the title, which is that of the front matter or else the first heading of level 1, and the sections. A
/// heading with nothing below it gives no section.
///
/// # Errors
/// If the sections are too large with the headings above each.
pub(super) fn sections(text: &str) -> Result<Sections, ProseFault> {
    let mut cut = SectionCut { text, outline: Outline::default(), start: 0, counted: 0, line: 1 };
    let mut depth = 0_usize;
    let mut heading: Option<String> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_YAML_STYLE_METADATA_BLOCKS).into_offset_iter() {
        match event {
            // A heading within a list or quotation begins no section.
            Event::Start(Tag::Heading { .. }) if depth == 0 => heading = Some(String::new()),
            Event::End(TagEnd::Heading(level)) if depth == 0 => {
                let words = heading.take().unwrap_or_default();
                cut.enter(level, &words, range);
            }
            Event::Start(Tag::MetadataBlock(_)) => {
                cut.outline.title = front_title(text.get(range.clone()).unwrap_or_default());
                cut.start = range.end;
                depth += 1;
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
    }
}
