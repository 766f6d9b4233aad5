//! ServerMetrics of stored traces, responses and resumable streams, read at each scrape.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

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

/// Reads the sizes of the stores at each scrape.
#[derive(Debug)]
pub(crate) struct StoreCollector {
    pub(crate) traces: Archive<StoredTrace>,
    pub(crate) responses: Responses,
    pub(crate) streams: Streams,
}

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let traces = self.traces.size();
        let responses = self.responses.size();
        let streams = self.streams.size();
        for (name, help, value) in [
            ("traces_kept", "Stored traces of episodes", traces.count),
            ("traces_kept_bytes", "Size of the stored traces in bytes", traces.bytes),
            ("responses_kept", "Stored responses", responses.count),
            ("responses_kept_bytes", "Size of the stored responses in bytes", responses.bytes),
            ("resumable_streams", "Resumable streams", streams.count),
            ("resumable_streams_bytes", "Size of the buffered events of resumable streams in bytes", streams.bytes),
        ] {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
