//! The memory of the server over time, and the slope of a line through it.
//!
//! Some memory varies by design, and the server's gauges tell how much: KV blocks are allocated on first use, and a
//! replaced adapter stays until the last request that began with it has ended. The rest has to stay flat.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::http_client::fetch;
use crate::run_shared::RunShared;

/// Interval between two samples.
const INTERVAL: Duration = Duration::from_millis(500);

/// Timeout of a response before the sample is skipped.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Gauges, in bytes, of memory that varies by design or is bounded.
const EXPLAINED: [&str; 4] =
    ["waymark_kv_bytes", "waymark_adapter_bytes", "waymark_traces_kept_bytes", "waymark_responses_kept_bytes"];

/// One sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemorySample {
    /// Number of the server's process, counted from the first.
    pub(crate) process: usize,
    /// Time since the process was ready, in seconds.
    pub(crate) age: f64,
    /// Resident anonymous memory, in bytes.
    pub(crate) resident: f64,
    /// Memory explained by the server's own gauges, in bytes.
    pub(crate) explained: f64,
}

impl MemorySample {
    /// Memory that the gauges do not explain, in bytes.
    pub(crate) fn rest(&self) -> f64 {
        self.resident - self.explained
    }
}

/// Linear fit through the memory of all processes: one slope, and an intercept for each process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MemoryFit {
    /// Slope, in bytes per second.
    pub(crate) slope: f64,
    /// Standard error of the slope.
    pub(crate) error: f64,
    /// Number of samples.
    pub(crate) samples: usize,
    /// Number of processes.
    pub(crate) processes: usize,
    /// Mean memory, in bytes.
    pub(crate) mean: f64,
    /// Longest observed age span of one process, in seconds.
    pub(crate) longest: f64,
}

/// Memory samples of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryLog {
    /// Samples in order.
    pub(crate) samples: Vec<MemorySample>,
    /// Number of failed samples: the server did not answer in time, or lacks a gauge.
    pub(crate) missed: usize,
}

/// Samples the server's memory until the task is aborted.
pub(crate) fn watch(shared: Arc<RunShared>, into: Arc<Mutex<MemoryLog>>) -> JoinHandle<()> {
    let target = shared.operator();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let metrics = tokio::time::timeout(RESPONSE_TIMEOUT, fetch(&target, "GET", "/metrics", "")).await;
            let Some(process) = shared.current_process() else { continue };
            let explained = match metrics {
                Ok(Ok((200, metrics))) => explained(&metrics),
                _ => None,
            };
            let sample = |(explained, resident)| {
                let age = process.age.as_secs_f64();
                MemorySample { process: process.number, age, resident, explained }
            };
            let sample = explained.zip(resident(process.pid)).map(sample);
            let mut measured = into.lock().unwrap_or_else(PoisonError::into_inner);
            measured.missed += usize::from(sample.is_none());
            measured.samples.extend(sample);
        }
    })
}

/// Returns the resident anonymous memory of a process, in bytes. Pages of mapped files, such as those of an index, do
/// not count, because the system can reclaim them. `None` if the system does not report it.
fn resident(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kibibytes| kibibytes * 1024.0)
}

/// Sum of the gauges of variable memory. `None` if one is missing.
fn explained(metrics: &str) -> Option<f64> {
    let value =
        |name: &&str| metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
    EXPLAINED.iter().map(value).sum()
}

/// Fits a line through `value` over all samples older than `warm` seconds by least squares, with an intercept for each
/// process (the "within" estimator): b = Σ (x − x̄ₗ)(y − ȳₗ) / Σ (x − x̄ₗ)², the bars being the means of the sample's
/// process. Its standard error assumes independent residuals; those of memory are correlated, so the error is a lower
/// bound.
pub(crate) fn fit(samples: &[MemorySample], warm: f64, value: fn(&MemorySample) -> f64) -> Option<MemoryFit> {
    let mut processes: std::collections::BTreeMap<usize, Vec<&MemorySample>> = std::collections::BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.age >= warm) {
        processes.entry(sample.process).or_default().push(sample);
    }
    processes.retain(|_, samples| samples.len() > 2);
    let mean = |samples: &[&MemorySample], value: fn(&MemorySample) -> f64| {
        samples.iter().map(|sample| value(sample)).sum::<f64>() / samples.len() as f64
    };
    let mut xx = 0.0;
    let mut xy = 0.0;
    let mut yy = 0.0;
    let mut count = 0;
    let mut total = 0.0;
    let mut longest = 0f64;
    for samples in processes.values() {
        let x = mean(samples, |sample| sample.age);
        let y = mean(samples, value);
        for sample in samples {
            let dx = sample.age - x;
            let dy = value(sample) - y;
            xx += dx * dx;
            xy += dx * dy;
            yy += dy * dy;
            total += value(sample);
        }
        count += samples.len();
        longest = longest.max(samples[samples.len() - 1].age - samples[0].age);
    }
    let freedom = count.checked_sub(processes.len() + 1).filter(|freedom| *freedom > 0)?;
    let slope = xy / xx;
    let error = ((yy - slope * xy).max(0.0) / freedom as f64 / xx).sqrt();
    slope.is_finite().then_some(MemoryFit {
        slope,
        error,
        samples: count,
        processes: processes.len(),
        mean: total / count as f64,
        longest,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processes_of_different_size_share_one_slope() {
        let sample = |process: usize, age: f64| {
            let wobble = if (age as usize).is_multiple_of(2) { 5.0 } else { -5.0 };
            // An adapter comes and goes every ten seconds.
            let explained = if (age as usize / 10).is_multiple_of(2) { 0.0 } else { 700.0 };
            MemorySample { process, age, resident: 1000.0 * process as f64 + 3.0 * age + wobble + explained, explained }
        };
        let samples: Vec<MemorySample> =
            (1..=3).flat_map(|process| (0..40).map(move |age| sample(process, f64::from(age)))).collect();
        let fit = fit(&samples, 10.0, MemorySample::rest).unwrap();
        assert!((fit.slope - 3.0).abs() < 0.1 && fit.error > 0.0 && fit.error < 0.2, "{fit:?}");
        assert_eq!((fit.samples, fit.processes, fit.longest), (90, 3, 29.0));
    }

    #[test]
    fn too_few_samples_give_no_fit() {
        assert_eq!(fit(&[], 0.0, MemorySample::rest), None);
        let one = MemorySample { process: 1, age: 30.0, resident: 1.0, explained: 0.0 };
        assert_eq!(fit(&[one, one, one], 0.0, MemorySample::rest), None, "no time has passed");
    }

    #[test]
    fn memory_in_the_gauges_is_explained() {
        let metrics = "# HELP waymark_kv_bytes x\nwaymark_kv_bytes 300\nwaymark_adapters 2\nwaymark_adapter_bytes 45\n\
            waymark_traces_kept_bytes 6\nwaymark_responses_kept_bytes 1\n# EOF\n";
        assert_eq!(explained(metrics), Some(352.0));
        assert_eq!(explained("waymark_kv_bytes 300\n"), None);
    }
}
