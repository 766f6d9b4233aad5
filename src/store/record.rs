//! Records, their kinds and keys.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::keys::KeyOwner;

/// Tenant that a record belongs to. `None` if the server requires no keys, and for records of the server itself.
pub type Owner = Option<KeyOwner>;

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Response of `/v1/responses`.
    Response,
    /// Summary of the trace of an episode; its content is its child.
    Trace,
    /// Content of a trace.
    TraceContent,
    /// Conversation of `/v1/conversations`; its items are its children.
    Conversation,
    /// Item of a conversation.
    ConversationItem,
    /// Policy loaded over HTTP.
    Policy,
    /// API key created over HTTP.
    Key,
    /// Secret with which the servers that share the state seal reasoning for clients to keep.
    Secret,
}

impl RecordKind {
    /// Kinds whose oldest records make room for new ones.
    pub const BOUNDED: [RecordKind; 3] = [Self::Response, Self::Trace, Self::Conversation];

    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::Trace => "trace",
            Self::TraceContent => "trace_content",
            Self::Conversation => "conversation",
            Self::ConversationItem => "conversation_item",
            Self::Policy => "policy",
            Self::Key => "key",
            Self::Secret => "secret",
        }
    }

    /// Returns the kind of a record's children, if it may have any.
    pub fn child(self) -> Option<RecordKind> {
        match self {
            Self::Conversation => Some(Self::ConversationItem),
            Self::Trace => Some(Self::TraceContent),
            _ => None,
        }
    }

    /// Returns the kind of a record's parent, if it has one.
    pub(super) fn parent(self) -> Option<RecordKind> {
        match self {
            Self::ConversationItem => Some(Self::Conversation),
            Self::TraceContent => Some(Self::Trace),
            _ => None,
        }
    }
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Key of a record. An ID is unique among the records of one kind, tenant and parent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecordKey {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Tenant that the record belongs to.
    pub owner: Owner,
    /// ID of the parent; empty without one.
    pub parent: String,
    /// ID of the record.
    pub id: String,
}

impl RecordKey {
    /// Creates the key of a record without a parent.
    pub fn new(kind: RecordKind, owner: Owner, id: impl Into<String>) -> Self {
        Self { kind, owner, parent: String::new(), id: id.into() }
    }

    /// Creates the key of a child of this record. `None` if its kind has no children.
    pub fn child(&self, id: impl Into<String>) -> Option<Self> {
        let kind = self.kind.child()?;
        Some(Self { kind, owner: self.owner, parent: self.id.clone(), id: id.into() })
    }

    /// Returns the key of the parent, if there is one.
    pub(super) fn of_parent(&self) -> Option<Self> {
        Some(Self::new(self.kind.parent()?, self.owner, self.parent.clone()))
    }
}

/// Record of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Key of the record.
    pub key: RecordKey,
    /// Position in lists: microseconds since 1970, and larger than that of every earlier record of this process.
    pub position: i64,
    /// Content of the record.
    pub body: Vec<u8>,
}

impl Record {
    /// Creates a record that follows all earlier ones of this process.
    pub fn new(key: RecordKey, body: Vec<u8>) -> Self {
        Self { key, position: next_position(), body }
    }

    /// Returns the record at a position behind `last`, which becomes its position. Clocks of servers differ, and appends
    /// at the same time draw their positions in turns: the order of what is appended must follow neither.
    pub(super) fn placed_after(self, last: &mut i64) -> Self {
        *last = self.position.max(*last + 1);
        Self { position: *last, ..self }
    }
}

/// Order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOrder {
    /// Oldest first.
    Ascending,
    /// Youngest first.
    Descending,
}

/// Part of the records of one kind, tenant and parent.
#[derive(Debug, Clone)]
pub struct RecordRange {
    /// Kind of the records.
    pub kind: RecordKind,
    /// Tenant that the records belong to.
    pub owner: Owner,
    /// ID of the parent; empty without one.
    pub parent: String,
    /// Order of the records.
    pub order: RecordOrder,
    /// Position after which the list begins, in its order. `None` begins at the first record.
    pub after: Option<i64>,
    /// Maximum number of records.
    pub limit: usize,
}

impl RecordRange {
    /// Creates the range of the `limit` youngest records without a parent.
    pub fn youngest(kind: RecordKind, owner: Owner, limit: usize) -> Self {
        Self { kind, owner, parent: String::new(), order: RecordOrder::Descending, after: None, limit }
    }
}

/// Returns the current time in microseconds since 1970, or one more than the last result if the clock has not moved on.
fn next_position() -> i64 {
    static LAST: AtomicI64 = AtomicI64::new(0);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let now = i64::try_from(clock).unwrap_or(i64::MAX - 1);
    // A position is returned only by the thread that raised `LAST` to it, so none repeats.
    let last = LAST.fetch_max(now, Relaxed);
    if last < now { now } else { LAST.fetch_add(1, Relaxed) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_only_grow() {
        let positions: Vec<i64> = (0..1000).map(|_| next_position()).collect();
        assert!(positions.windows(2).all(|pair| pair[0] < pair[1]), "{positions:?}");
    }
}
