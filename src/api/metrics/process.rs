//! ServerMetrics of the process, read from `/proc`. Not exposed on systems without it.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// Reads the metrics of the process at each scrape.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut gauge = |name, help, value: Option<i64>| match value {
            Some(value) => encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value),
            None => Ok(()),
        };
        gauge("process_resident_memory_bytes", "Resident memory of the process in bytes", resident())?;
        gauge("process_open_fds", "Open files and sockets of the process", open())
    }
}

fn resident() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn open() -> Option<i64> {
    i64::try_from(std::fs::read_dir("/proc/self/fd").ok()?.count()).ok()
}
