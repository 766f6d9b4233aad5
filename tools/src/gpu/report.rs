//! Report of the benchmark, as JSON and as text.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::agentic::AgenticScript;
use super::facts::GpuFacts;
use super::gemm::{self, GemmRow};
use super::goal::SpeedGoal;
use super::profile::ProfileReport;
use super::rates::RateSampling;
use super::shape::Ceilings;

/// Name of the comparison of greedy text on GPU and CPU. Saved reports are searched for this string, so it must not
/// change.
pub(super) const GREEDY: &str = "processor and card, 50 prompts";

/// Results of one run. Parts that were not measured are missing, and `notes` says why. A report read from a file holds
/// only the fields that the goals need.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct GpuReport {
    /// Description of the device, such as `NVIDIA H200, driver CUDA 13.0` or `cpu`.
    pub(super) device: String,
    pub(super) version: String,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(super) facts: Option<GpuFacts>,
    /// Paths of the CUDA libraries loaded into the process.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) libraries: Vec<String>,
    /// Comparison of the kernels with their references.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(super) kernels: Option<KernelCheck>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) agreement: Vec<Agreement>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) learning: Vec<TrainingCheck>,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(super) best: Option<Ceilings>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) gemm: Vec<GemmRow>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) ready: Vec<LoadTime>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) decode: Vec<Rate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) prefill: Vec<Rate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) agentic: Vec<AgenticLoad>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) profiles: Vec<ProfileReport>,
    /// Measurements of another server on the same GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<Peer>,
    #[serde(skip_deserializing)]
    pub(super) notes: Vec<String>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) goals: Vec<SpeedGoal>,
}

/// Comparison of the kernels with their references.
#[derive(Debug, Default, Serialize)]
pub(super) struct KernelCheck {
    pub(super) compared: usize,
    /// Largest error as a share of its bound.
    pub(super) worst: f64,
    pub(super) wrong: Vec<String>,
}

/// Comparison of two computations of the same text.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Agreement {
    /// Compared computations.
    pub(super) what: String,
    /// Name of the model.
    pub(super) over: String,
    /// Number of compared positions.
    pub(super) positions: usize,
    /// Number of sequences whose greedy text differs, and the first differing position.
    pub(super) diverged: usize,
    pub(super) first: Option<usize>,
    /// Difference of the log-probability of the same token: the mean, the largest mean of a row, and the maximum.
    #[serde(deserialize_with = "nan_from_null")]
    pub(super) mean: f64,
    #[serde(deserialize_with = "nan_from_null")]
    pub(super) row: f64,
    #[serde(deserialize_with = "nan_from_null")]
    pub(super) largest: f64,
    /// If `true`, rounding explains the difference.
    pub(super) holds: bool,
}

/// Comparison of one training step of an adapter on the GPU and on the CPU.
#[derive(Debug, Serialize)]
pub(super) struct TrainingCheck {
    /// Name of the model.
    pub(super) what: String,
    /// Number of tokens of the pass, counting shared ones once.
    pub(super) tokens: usize,
    /// Relative error ‖GPU − CPU‖ / ‖CPU‖ of log-probabilities and entropies, of the whole gradient, and of the worst
    /// tensor of the gradient.
    pub(super) scores: f64,
    pub(super) gradient: f64,
    pub(super) tensor: f64,
    /// Mean loss before and after a small gradient step, on the GPU and on the CPU.
    #[serde(rename = "card")]
    pub(super) gpu: [f64; 2],
    #[serde(rename = "processor")]
    pub(super) cpu: [f64; 2],
    /// Seconds of a forward and backward pass, on the GPU and on the CPU.
    #[serde(rename = "card_seconds")]
    pub(super) gpu_seconds: f64,
    #[serde(rename = "processor_seconds")]
    pub(super) cpu_seconds: f64,
    /// If `true`, rounding explains the differences, and both losses decreased.
    pub(super) holds: bool,
}

/// Load time of a shape, and the size of its KV cache.
#[derive(Debug, Serialize)]
pub(super) struct LoadTime {
    pub(super) shape: String,
    pub(super) seconds: f64,
    pub(super) kv_bytes_per_token: usize,
    pub(super) kv_tokens: usize,
}

/// A rate at one number of sequences.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Rate {
    pub(super) shape: String,
    pub(super) sequences: usize,
    /// Prompt tokens per sequence.
    pub(super) prompt: usize,
    /// Tokens decoded per sequence; 1 for prefill, which ends with the first token.
    #[serde(default)]
    pub(super) tokens: usize,
    /// Sampling of the decoded tokens.
    #[serde(default)]
    pub(super) sampling: RateSampling,
    pub(super) graphs: bool,
    /// Rate over all sequences.
    pub(super) tokens_per_second: f64,
    /// Minimum time by the GPU's peak rates, as a share of the measured time. `None` when the peak rates are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_floor: Option<f64>,
    /// Mean milliseconds from the end of a pass until all of the next one is enqueued; for decoding, only while all
    /// sequences decode. `None` when there was no such gap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gap: Option<f64>,
}

/// Results of the agentic load in one mode.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AgenticLoad {
    pub(super) shape: String,
    pub(super) way: String,
    #[serde(flatten)]
    pub(super) script: AgenticScript,
    /// If `true`, loops searched an index; otherwise each search was a wait.
    pub(super) searched: bool,
    /// Milliseconds of such a wait.
    #[serde(default)]
    pub(super) search_ms: f64,
    pub(super) questions_per_second: f64,
    /// Milliseconds from the end of a search to the next token.
    pub(super) resume_p50: f64,
    pub(super) resume_p95: f64,
    /// Number of tokens computed, found in the prefix cache, and computed a second time.
    pub(super) computed: u64,
    pub(super) cached: u64,
    pub(super) recomputed: u64,
}

/// Output of `scripts/bench/gpu_peer.py`: the same loads on another server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Peer {
    /// Name of the GPU as reported by its driver.
    pub(super) device: String,
    pub(super) version: String,
    pub(super) decode: Vec<Rate>,
    pub(super) prefill: Vec<Rate>,
    pub(super) agentic: Vec<PeerLoad>,
}

/// Results of the agentic load on another server, where every turn is a new request and every search a wait.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PeerLoad {
    pub(super) shape: String,
    #[serde(flatten)]
    pub(super) script: AgenticScript,
    /// Milliseconds of each search.
    #[serde(default)]
    pub(super) search_ms: f64,
    pub(super) questions_per_second: f64,
}

/// Reads a JSON file.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a report of this benchmark", path.display()))
}

/// Reads a number; JSON stores NaN as `null`.
fn nan_from_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl GpuReport {
    /// Merges the report of another run on the same device. A report without a device has no results.
    pub(super) fn merge(&mut self, other: Self) -> anyhow::Result<()> {
        if other.device.is_empty() {
            return Ok(());
        }
        let own = &self.device;
        let theirs = &other.device;
        ensure!(
            own.is_empty() || own == theirs,
            "the reports are of two devices, {own} and {theirs}: judge them separately"
        );
        (self.device, self.version) = (other.device, other.version);
        self.agreement.extend(other.agreement);
        self.decode.extend(other.decode);
        self.prefill.extend(other.prefill);
        self.agentic.extend(other.agentic);
        // A peer given with `--peer` takes precedence over one in a report.
        self.peer = self.peer.take().or(other.peer);
        Ok(())
    }

    /// Returns `true` if no comparison found a wrong result.
    pub(super) fn holds(&self) -> bool {
        self.kernels.as_ref().is_none_or(|kernels| kernels.wrong.is_empty())
            && self.agreement.iter().all(|a| a.holds)
            && self.learning.iter().all(|learning| learning.holds)
    }

    /// Prints the report as text.
    pub(super) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.device.is_empty() {
            return Ok(());
        }
        writeln!(out, "{}, waymark {}", self.device, self.version)?;
        self.print_facts(out)?;
        if let Some(kernels) = &self.kernels {
            let compared = kernels.compared;
            let wrong = kernels.wrong.len();
            writeln!(out, "kernels: {compared} comparisons, {wrong} wrong, worst {:.2} of its bound", kernels.worst)?;
            kernels.wrong.iter().try_for_each(|wrong| writeln!(out, "  WRONG: {wrong}"))?;
        }
        for a in &self.agreement {
            let verdict = if a.holds { "" } else { "  WRONG" };
            let first = a.first.map_or_else(String::new, |first| format!(", first at {first}"));
            writeln!(
                out,
                "{}, {}: {} positions, {} diverged{first}; mean log-probability difference {:.5}, worst row {:.5}, maximum \
                 {:.5}{verdict}",
                a.what, a.over, a.positions, a.diverged, a.mean, a.row, a.largest
            )?;
        }
        for l in &self.learning {
            let verdict = if l.holds { "" } else { "  WRONG" };
            writeln!(
                out,
                "training on {}, {} tokens: relative error of scores {:.2e}, gradient {:.2e}, worst tensor {:.2e}; loss {:.4} \
                 to {:.4}, on the CPU {:.4} to {:.4}; {:.3} s, on the CPU {:.3} s{verdict}",
                l.what,
                l.tokens,
                l.scores,
                l.gradient,
                l.tensor,
                l.gpu[0],
                l.gpu[1],
                l.cpu[0],
                l.cpu[1],
                l.gpu_seconds,
                l.cpu_seconds,
            )?;
        }
        if let Some(best) = self.best {
            writeln!(out, "ceilings: {:.2} TB/s, {:.0} TFLOP/s", best.bandwidth / 1e12, best.operations / 1e12)?;
        }
        gemm::print(&self.gemm, out)?;
        for ready in &self.ready {
            let LoadTime { shape, seconds, kv_bytes_per_token: bytes, kv_tokens } = ready;
            writeln!(out, "{shape}: ready in {seconds:.1} s, {bytes} bytes of KV per token, {kv_tokens} tokens")?;
        }
        self.print_rates(out)?;
        self.print_loads(out)?;
        self.profiles.iter().try_for_each(|profile| profile.print(out))?;
        self.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
        self.print_goals(out)
    }

    fn print_facts(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if let Some(GpuFacts { capability, memory, free, compile_seconds }) = &self.facts {
            let gib = |bytes: &usize| *bytes as f64 / (1u64 << 30) as f64;
            writeln!(
                out,
                "compute capability {capability}, {:.1} GiB of memory, {:.1} GiB free",
                gib(memory),
                gib(free)
            )?;
            for (dim, seconds) in compile_seconds {
                writeln!(out, "kernels for heads of {dim}: compiled and loaded in {seconds:.1} s")?;
            }
        }
        self.libraries.iter().try_for_each(|path| writeln!(out, "library: {path}"))
    }

    fn print_rates(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for (name, rates) in [("decode", &self.decode), ("prefill", &self.prefill)] {
            if rates.is_empty() {
                continue;
            }
            writeln!(
                out,
                "{name:8} {:>14} {:>10} {:>7} {:>8} {:>7} {:>12} {:>9} {:>7}",
                "shape", "sequences", "prompt", "sampling", "graphs", "tokens/s", "of floor", "gap ms"
            )?;
            for rate in rates {
                let graphs = if rate.graphs { "on" } else { "off" };
                let floor = rate.of_floor.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
                let gap = rate.gap.map_or_else(|| "-".to_owned(), |gap| format!("{gap:.3}"));
                let sampling = rate.sampling.name();
                let Rate { shape, sequences, prompt, tokens_per_second: rate, .. } = rate;
                write!(out, "{:8} {shape:>14} {sequences:>10} {prompt:>7} {sampling:>8}", "")?;
                writeln!(out, " {graphs:>7} {rate:>12.1} {floor:>9} {gap:>7}")?;
            }
        }
        if !self.decode.is_empty() {
            let meaning = "mean time from the end of a pass until all of the next one is enqueued";
            writeln!(out, "gap: {meaning}; for decode, while all sequences decode")?;
        }
        Ok(())
    }

    fn print_loads(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.agentic.is_empty() {
            return Ok(());
        }
        let head = ["questions/s", "resume p50", "p95 ms", "computed", "cached", "recomputed"];
        write!(out, "{:42}", "agentic load")?;
        head.iter().try_for_each(|name| write!(out, " {name:>11}"))?;
        for load in &self.agentic {
            let AgenticLoad { shape, way, script, questions_per_second: rate, resume_p50, resume_p95, .. } = load;
            let AgenticLoad { computed, cached, recomputed, .. } = load;
            let what = format!("{shape}, {} loops, {way}", script.loops);
            write!(out, "\n{what:42} {rate:>11.2} {resume_p50:>11.1} {resume_p95:>11.1}")?;
            write!(out, " {computed:>11} {cached:>11} {recomputed:>11}")?;
        }
        writeln!(out)
    }

    fn print_goals(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.goals.is_empty() {
            return Ok(());
        }
        writeln!(out, "{:52} {:>12}  {:12}  measured", "goal", "asked", "verdict")?;
        for SpeedGoal { what, asked, measured, verdict } in &self.goals {
            let line = format!("{what:52} {asked:>12}  {:12}  {measured}", verdict.name());
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
