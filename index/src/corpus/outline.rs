//! Collects the sections of a text under their headings.

use super::prose::{ProseFault, Section, Sections};

/// Maximum characters of a heading that are kept in the path of a section.
const LONGEST_HEADING: usize = 200;

/// Maximum bytes of the sections of a text, with the headings above each. Every section has a copy of them, so that
/// many short sections below long headings take thousands of times the size of their file.
const LARGEST_SECTIONS: usize = 256 << 20;

/// Sections found so far, and the headings above the current one.
#[derive(Debug, Default)]
pub(super) struct Outline {
    /// Title of the text. `None` takes the first heading of level 1.
    pub(super) title: Option<String>,
    path: Vec<(u8, String)>,
    sections: Vec<Section>,
    /// Bytes of all sections, including those that were left out because they are too many.
    bytes: usize,
}

impl Outline {
    /// Adds a section under the current heading, unless it is blank.
    pub(super) fn add(&mut self, text: &str, line: u64, markdown: bool) {
        if text.trim().is_empty() {
            return;
        }
        let headings: usize = self.path.iter().map(|(_, heading)| size_of::<String>() + heading.len()).sum();
        self.bytes = self.bytes.saturating_add(size_of::<Section>() + headings + text.len());
        // The rest is left out, and `finish` refuses the text.
        if self.bytes <= LARGEST_SECTIONS {
            let headings = self.path.iter().map(|(_, heading)| heading.clone()).collect();
            self.sections.push(Section { headings, page: None, line, text: text.to_owned(), markdown });
        }
    }

    /// Begins a section. Level 1 is the outermost. A long heading is cut, and its full text becomes a section as well.
    pub(super) fn enter(&mut self, level: u8, heading: &str) {
        let heading = heading.split_whitespace().collect::<Vec<_>>().join(" ");
        self.path.retain(|(outer, _)| *outer < level);
        if heading.is_empty() {
            return;
        }
        let shown: String = heading.chars().take(LONGEST_HEADING).collect();
        if level == 1 && self.title.is_none() {
            self.title = Some(shown.clone());
        }
        let is_cut = shown.len() < heading.len();
        self.path.push((level, shown));
        if is_cut {
            // A heading that is not closed may hold the text of a whole page.
            self.add(&heading, 1, false);
        }
    }

    /// Returns title and sections. The title is empty if there is none.
    ///
    /// # Errors
    /// [`ProseFault::Unsupported`] if the sections are too large with their headings.
    pub(super) fn finish(self) -> Result<Sections, ProseFault> {
        if self.bytes > LARGEST_SECTIONS {
            return Err(ProseFault::Unsupported(format!(
                "its sections take more than {LARGEST_SECTIONS} bytes, each with the headings above it: split the file"
            )));
        }
        Ok((self.title.unwrap_or_default(), self.sections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_that_repeat_long_headings_are_refused_before_they_fill_the_memory() {
        let mut outline = Outline::default();
        for level in 1..=5 {
            outline.enter(level, &"\u{1d400}".repeat(LONGEST_HEADING));
        }
        outline.add("b", 1, false);
        assert!(outline.bytes > 5 * 4 * LONGEST_HEADING);
        let most = LARGEST_SECTIONS / outline.bytes;
        (1..most + 10).for_each(|_| outline.add("b", 1, false));
        assert_eq!(outline.sections.len(), most);
        let refused = outline.finish();
        assert!(matches!(refused, Err(ProseFault::Unsupported(message)) if message.contains("split the file")));
    }
}
