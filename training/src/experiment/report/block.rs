//! Blocks of a report, which Markdown and HTML render alike.

/// A block of a report.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Block {
    /// Heading with its level, from 1.
    Heading(usize, String),
    /// Paragraph of plain text.
    Text(String),
    /// Table.
    Grid(Grid),
    /// Differences with their intervals, drawn on the page and left out of Markdown, where they stand in a table.
    Forest(Vec<Whisker>),
}

/// A table.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Grid {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Grid {
    pub(super) fn new<T: Into<String>>(head: impl IntoIterator<Item = T>) -> Grid {
        Grid { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }
}

/// A difference with its interval.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Whisker {
    pub(super) label: String,
    pub(super) low: f64,
    pub(super) value: f64,
    pub(super) high: f64,
    pub(super) bar: f64,
    pub(super) passed: bool,
}
