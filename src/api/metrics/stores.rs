//! Metrics of stored traces, responses, conversations and resumable streams, read at each scrape.

use super::recorder::MetricsRecorder;
use crate::api::records::Records;
use crate::api::resume::Streams;
use crate::api::traces::StoredTrace;
use crate::store::{Archive, RecordKind};

/// Stores whose sizes are metrics.
#[derive(Debug, Clone)]
pub(crate) struct MeasuredStores {
    pub(crate) traces: Archive<StoredTrace>,
    pub(crate) records: Records,
    pub(crate) streams: Streams,
}

impl MeasuredStores {
    /// Records the sizes of the stores.
    pub(super) fn record(&self, recorder: &MetricsRecorder) {
        let traces = self.traces.size();
        let responses = self.records.size(RecordKind::Response);
        let conversations = self.records.size(RecordKind::Conversation);
        let recorded = self.records.size(RecordKind::Trace);
        let streams = self.streams.size();
        let buffered = "Size of the buffered events of resumable streams in bytes";
        for (name, help, value) in [
            ("waymark_traces_kept", "Traces of episodes in memory", traces.count),
            ("waymark_traces_kept_bytes", "Size of the traces in memory in bytes", traces.bytes),
            ("waymark_traces_recorded", "Traces of episodes in the state", recorded.count),
            ("waymark_traces_recorded_bytes", "Compressed size of the traces in the state in bytes", recorded.bytes),
            ("waymark_responses_kept", "Stored responses", responses.count),
            ("waymark_responses_kept_bytes", "Size of the stored responses in bytes", responses.bytes),
            ("waymark_conversations_kept", "Stored conversations", conversations.count),
            ("waymark_conversations_kept_bytes", "Size of the stored conversations in bytes", conversations.bytes),
            ("waymark_resumable_streams", "Resumable streams", streams.count),
            ("waymark_resumable_streams_bytes", buffered, streams.bytes),
        ] {
            recorder.gauge(name, help).set(value as f64);
        }
        let lost = "Records that could not be written to the state";
        let unread = "Records that could not be read from the state";
        recorder.counter("waymark_state_write_failures_total", lost).absolute(self.records.write_failures());
        recorder.counter("waymark_state_read_failures_total", unread).absolute(self.records.read_failures());
    }
}
