//! Metrics of stored traces, responses and resumable streams, read at each scrape.

use super::recorder::MetricsRecorder;
use crate::api::archive::Archive;
use crate::api::responses::Responses;
use crate::api::resume::Streams;
use crate::api::traces::StoredTrace;

/// Number of stored values and their approximate size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StoreSize {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

/// Stores whose sizes are metrics.
#[derive(Debug, Clone)]
pub(crate) struct MeasuredStores {
    pub(crate) traces: Archive<StoredTrace>,
    pub(crate) responses: Responses,
    pub(crate) streams: Streams,
}

impl MeasuredStores {
    /// Records the sizes of the stores.
    pub(super) fn record(&self, recorder: &MetricsRecorder) {
        let traces = self.traces.size();
        let responses = self.responses.size();
        let streams = self.streams.size();
        let buffered = "Size of the buffered events of resumable streams in bytes";
        for (name, help, value) in [
            ("waymark_traces_kept", "Stored traces of episodes", traces.count),
            ("waymark_traces_kept_bytes", "Size of the stored traces in bytes", traces.bytes),
            ("waymark_responses_kept", "Stored responses", responses.count),
            ("waymark_responses_kept_bytes", "Size of the stored responses in bytes", responses.bytes),
            ("waymark_resumable_streams", "Resumable streams", streams.count),
            ("waymark_resumable_streams_bytes", buffered, streams.bytes),
        ] {
            recorder.gauge(name, help).set(value as f64);
        }
    }
}
