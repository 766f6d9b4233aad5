//! Encoder of TensorBoard's `Event` in protobuf's wire format, limited to scalars.
//!
//! Field numbers are those of `tensorboard/compat/proto/event.proto` and `summary.proto`:
//!
//! | message | fields |
//! |---|---|
//! | `Event` | `wall_time: double = 1`, `step: int64 = 2`, `file_version: string = 3`, `summary: Summary = 5`, `session_log: SessionLog = 7` |
//! | `Summary` | `value: repeated Value = 1` |
//! | `Summary.Value` | `tag: string = 1`, `simple_value: float = 2` |
//! | `SessionLog` | `status: enum = 1`, where `START` is 1 |

const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

/// Payload of an event.
#[derive(Debug, Clone, Copy)]
pub(super) enum EventPayload<'a> {
    /// First event of every file.
    Version,
    /// Start of a session: events of this step and later ones in earlier files are discarded.
    Start,
    /// Metrics by tag.
    Scalars(&'a [(String, f64)]),
}

/// Encodes an event as protobuf.
pub(super) fn encode(wall_time: f64, step: u64, what: EventPayload<'_>) -> Vec<u8> {
    let mut event = ProtoMessage::default();
    event.key(1, EIGHT_BYTES).0.extend_from_slice(&wall_time.to_le_bytes());
    event.key(2, VARINT).varint(step);
    match what {
        // TensorBoard reads the version of the format from this text.
        EventPayload::Version => event.bytes(3, b"brain.Event:2"),
        EventPayload::Start => {
            let mut log = ProtoMessage::default();
            log.key(1, VARINT).varint(1);
            event.bytes(7, &log.0);
        }
        EventPayload::Scalars(scalars) => {
            let mut summary = ProtoMessage::default();
            for (tag, value) in scalars {
                let mut scalar = ProtoMessage::default();
                scalar.bytes(1, tag.as_bytes());
                // TensorBoard's `simple_value` has single precision.
                scalar.key(2, FOUR_BYTES).0.extend_from_slice(&(*value as f32).to_le_bytes());
                summary.bytes(1, &scalar.0);
            }
            event.bytes(5, &summary.0);
        }
    }
    event.0
}

#[derive(Debug, Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn key(&mut self, field: u64, wire: u64) -> &mut ProtoMessage {
        self.varint(field << 3 | wire);
        self
    }

    /// Writes a varint: seven bits per byte, lowest first; the highest bit marks that more bytes follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, BYTES).varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}
