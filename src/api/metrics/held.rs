//! What is kept for clients that may come back: read at each scrape.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::api::archive::Archive;
use crate::api::responses::Responses;
use crate::api::resume::Streams;
use crate::api::traces::Kept;

/// Things in memory, and about how many bytes they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

/// Looks at what is kept at each scrape.
#[derive(Debug)]
pub(crate) struct HeldCollector {
    pub(crate) traces: Archive<Kept>,
    pub(crate) responses: Responses,
    pub(crate) streams: Streams,
}

impl Collector for HeldCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let (traces, responses, streams) = (self.traces.held(), self.responses.held(), self.streams.held());
        for (name, help, value) in [
            ("traces_kept", "Traces of episodes that are kept", traces.count),
            ("traces_kept_bytes", "What the kept traces take", traces.bytes),
            ("responses_kept", "Responses that are kept", responses.count),
            ("responses_kept_bytes", "What the kept responses take", responses.bytes),
            ("resumable_streams", "Resumable streams that are known", streams.count),
            ("resumable_streams_bytes", "What their events take that are held for readers", streams.bytes),
        ] {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
