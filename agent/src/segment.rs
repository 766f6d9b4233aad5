//! Segments of a turn, and the tags between them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::evidence_header::EvidenceHeader;

/// Kind of a segment of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// Reasoning.
    Think,
    /// A search, as the policy writes it.
    Query,
    /// The answer.
    Answer,
    /// The policy's explanation that it gives no answer.
    Refusal,
    /// Text outside the known tags.
    Text,
}

/// A pair of tags, or a label with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Kind of the text between the two.
    pub kind: SegmentKind,
    /// Opening tag. If it ends with a colon it is a label, which counts at the beginning of a line only, after optional
    /// blanks.
    pub open: &'static str,
    /// Closing tag. The end of a label closes nothing else; if this text is empty, the label extends to the end of the
    /// turn.
    pub close: &'static str,
}

impl Tag {
    /// Returns `true` if it is opened by a label.
    pub fn is_label(&self) -> bool {
        self.open.ends_with(':')
    }
}

/// The tags of a protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Tags {
    /// Kind of text outside every tag.
    pub outside: SegmentKind,
    /// Kind of text at the beginning of a turn; differs from `outside` if the prompt and observations end with an
    /// opening tag.
    pub begins: SegmentKind,
    /// The pairs. Those of kind [`SegmentKind::Text`] belong to the environment: a policy that writes them writes plain
    /// text.
    pub pairs: &'static [Tag],
    /// Names whose tags are sanitized in retrieved text.
    pub names: &'static [&'static str],
    /// Labels that are sanitized in retrieved text, at the beginning of a line and before a colon.
    pub labels: &'static [&'static str],
    /// Headers of evidence that are sanitized in each retrieved passage and triple.
    pub headers: &'static [EvidenceHeader],
    /// If `true`, white space around an answer is stripped.
    pub trims: bool,
}

/// A segment of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnSegment {
    /// Kind of the segment.
    pub kind: SegmentKind,
    /// Byte range, without tags.
    pub range: Range<usize>,
}
