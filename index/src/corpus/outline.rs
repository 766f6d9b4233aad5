//! Collects the sections of a text under their headings.

use super::prose::{Section, Sections};

/// Maximum characters of a heading that are kept in the path of a section.
const LONGEST_HEADING: usize = 200;

/// Sections found so far, and the headings above the current one.
#[derive(Debug, Default)]
pub(super) struct Outline {
    /// Title of the text. `None` takes the first heading of level 1.
    pub(super) title: Option<String>,
    path: Vec<(u8, String)>,
    sections: Vec<Section>,
}

impl Outline {
    /// Adds a section under the current heading, unless it is blank.
    pub(super) fn add(&mut self, text: &str, line: u64, markdown: bool) {
        if !text.trim().is_empty() {
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
    pub(super) fn finish(self) -> Sections {
        (self.title.unwrap_or_default(), self.sections)
    }
}
