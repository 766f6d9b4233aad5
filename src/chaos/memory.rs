//! The memory of the server over time, and the slope of a line through it.
//!
//! Some of it comes and goes by design, and the server says how much: KV blocks take theirs as they are first used, and each
//! adapter that was replaced stays until the last request that began with it has ended. What is left is to be flat.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::pulse::Pulse;
use crate::wire::ask;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);

/// What an answer of the server may take before the look is passed over.
const PATIENCE: Duration = Duration::from_secs(5);

/// The gauges of what comes and goes by design, or is kept up to a bound, in bytes.
const EXPLAINED: [&str; 4] =
    ["waymark_kv_bytes", "waymark_adapter_bytes", "waymark_traces_kept_bytes", "waymark_responses_kept_bytes"];

/// One look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Which life of the server.
    pub(crate) life: usize,
    /// Its age, in seconds.
    pub(crate) age: f64,
    /// Resident anonymous memory, in bytes.
    pub(crate) resident: f64,
    /// What of it the server's own gauges explain, in bytes.
    pub(crate) explained: f64,
}

impl Sample {
    /// What the gauges do not explain, in bytes.
    pub(crate) fn rest(&self) -> f64 {
        self.resident - self.explained
    }
}

/// A line through the memory of all lives: one slope for all, and a level for each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fit {
    /// Bytes per second.
    pub(crate) slope: f64,
    /// Its standard error.
    pub(crate) error: f64,
    /// Looks it was made of.
    pub(crate) samples: usize,
    /// Lives they belong to.
    pub(crate) lives: usize,
    /// Mean of the memory, in bytes.
    pub(crate) mean: f64,
    /// The longest time over which one life was looked at, in seconds.
    pub(crate) longest: f64,
}

/// What was seen of the memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Looks {
    /// What each look found, in order.
    pub(crate) samples: Vec<Sample>,
    /// Looks at a running server that found nothing: it did not answer in time, or lacks a gauge.
    pub(crate) missed: usize,
}

/// Looks at the server's memory until the task is aborted.
pub(crate) fn watch(pulse: Arc<Pulse>, into: Arc<Mutex<Looks>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            let metrics = tokio::time::timeout(PATIENCE, ask(pulse.address, "GET", "/metrics", "")).await;
            let Some((life, pid, age)) = pulse.life() else { continue };
            let explained = match metrics {
                Ok(Ok((200, metrics))) => explained(&metrics),
                _ => None,
            };
            let sample = |(explained, resident)| Sample { life, age: age.as_secs_f64(), resident, explained };
            let sample = explained.zip(resident(pid)).map(sample);
            let mut looks = into.lock().unwrap_or_else(PoisonError::into_inner);
            looks.missed += usize::from(sample.is_none());
            looks.samples.extend(sample);
        }
    })
}

/// Resident memory of a process that is its own, in bytes, where the system tells: pages of mapped files, an index's, are
/// the system's to take back.
fn resident(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kibibytes| kibibytes * 1024.0)
}

/// The sum of the gauges of what comes and goes, where all of them are there.
fn explained(metrics: &str) -> Option<f64> {
    let value =
        |name: &&str| metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
    EXPLAINED.iter().map(value).sum()
}

/// Least squares through `value` over all samples older than `warm` seconds, with an intercept of its own for each life
/// (the "within" estimator): b = Σ (x − x̄ₗ)(y − ȳₗ) / Σ (x − x̄ₗ)², the bars being the means of the sample's life. Its
/// standard error takes the residuals as independent, which memory's are not: it is a lower bound.
pub(crate) fn fit(samples: &[Sample], warm: f64, value: fn(&Sample) -> f64) -> Option<Fit> {
    let mut lives: std::collections::BTreeMap<usize, Vec<&Sample>> = std::collections::BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.age >= warm) {
        lives.entry(sample.life).or_default().push(sample);
    }
    lives.retain(|_, samples| samples.len() > 2);
    let mean = |samples: &[&Sample], value: fn(&Sample) -> f64| {
        samples.iter().map(|sample| value(sample)).sum::<f64>() / samples.len() as f64
    };
    let (mut xx, mut xy, mut yy, mut count, mut total, mut longest) = (0.0, 0.0, 0.0, 0, 0.0, 0f64);
    for samples in lives.values() {
        let (x, y) = (mean(samples, |sample| sample.age), mean(samples, value));
        for sample in samples {
            let (dx, dy) = (sample.age - x, value(sample) - y);
            (xx, xy, yy) = (xx + dx * dx, xy + dx * dy, yy + dy * dy);
            total += value(sample);
        }
        count += samples.len();
        longest = longest.max(samples[samples.len() - 1].age - samples[0].age);
    }
    let freedom = count.checked_sub(lives.len() + 1).filter(|freedom| *freedom > 0)?;
    let slope = xy / xx;
    let error = ((yy - slope * xy).max(0.0) / freedom as f64 / xx).sqrt();
    slope.is_finite().then_some(Fit {
        slope,
        error,
        samples: count,
        lives: lives.len(),
        mean: total / count as f64,
        longest,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lives_of_different_size_share_one_slope() {
        let sample = |life: usize, age: f64| {
            let wobble = if (age as usize).is_multiple_of(2) { 5.0 } else { -5.0 };
            // An adapter comes and goes every ten seconds.
            let explained = if (age as usize / 10).is_multiple_of(2) { 0.0 } else { 700.0 };
            Sample { life, age, resident: 1000.0 * life as f64 + 3.0 * age + wobble + explained, explained }
        };
        let samples: Vec<Sample> =
            (1..=3).flat_map(|life| (0..40).map(move |age| sample(life, f64::from(age)))).collect();
        let fit = fit(&samples, 10.0, Sample::rest).unwrap();
        assert!((fit.slope - 3.0).abs() < 0.1 && fit.error > 0.0 && fit.error < 0.2, "{fit:?}");
        assert_eq!((fit.samples, fit.lives, fit.longest), (90, 3, 29.0));
    }

    #[test]
    fn nothing_is_said_about_too_little() {
        assert_eq!(fit(&[], 0.0, Sample::rest), None);
        let one = Sample { life: 1, age: 30.0, resident: 1.0, explained: 0.0 };
        assert_eq!(fit(&[one, one, one], 0.0, Sample::rest), None, "no time has passed");
    }

    #[test]
    fn what_the_gauges_say_is_explained() {
        let metrics = "# HELP waymark_kv_bytes x\nwaymark_kv_bytes 300\nwaymark_adapters 2\nwaymark_adapter_bytes 45\n\
            waymark_traces_kept_bytes 6\nwaymark_responses_kept_bytes 1\n# EOF\n";
        assert_eq!(explained(metrics), Some(352.0));
        assert_eq!(explained("waymark_kv_bytes 300\n"), None);
    }
}
