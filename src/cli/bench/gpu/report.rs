//! What was measured, as JSON and as a table.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::agentic::Script;
use super::goal::Goal;
use super::profile::Profile;
use super::shape::Best;

/// What greedy text on the card and on the processor is called among what was compared.
pub(super) const GREEDY: &str = "processor and card, 50 prompts";

/// Everything one run of the bench found. What was not measured is missing, and `notes` says why. Read again, it is what
/// goals are judged by, and no more.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Report {
    /// What computed, such as `NVIDIA H200, driver CUDA 13.0` or `cpu`.
    pub(super) device: String,
    pub(super) version: String,
    /// Kernels that differ from their reference; empty when all hold.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(super) kernels: Option<Kernels>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) agreement: Vec<Agreement>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) learning: Vec<Learning>,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(super) best: Option<Best>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) ready: Vec<Ready>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) decode: Vec<Rate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) prefill: Vec<Rate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) agentic: Vec<Load>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) profiles: Vec<Profile>,
    /// What another server was measured at on the same card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<Peer>,
    #[serde(skip_deserializing)]
    pub(super) notes: Vec<String>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(super) goals: Vec<Goal>,
}

/// The kernels against their references.
#[derive(Debug, Default, Serialize)]
pub(super) struct Kernels {
    pub(super) compared: usize,
    /// The largest error as a share of its bound.
    pub(super) worst: f64,
    pub(super) wrong: Vec<String>,
}

/// Two ways of computing the same.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Agreement {
    /// What was compared.
    pub(super) what: String,
    /// Over which model.
    pub(super) over: String,
    /// Positions compared.
    pub(super) positions: usize,
    /// Sequences whose greedy text differs, and the first position at which one does.
    pub(super) diverged: usize,
    pub(super) first: Option<usize>,
    /// Difference of the log-probability of the same token: the mean, the largest mean of one row, and the largest.
    #[serde(deserialize_with = "number")]
    pub(super) mean: f64,
    #[serde(deserialize_with = "number")]
    pub(super) row: f64,
    #[serde(deserialize_with = "number")]
    pub(super) largest: f64,
    /// Whether the difference is what rounding explains.
    pub(super) holds: bool,
}

/// One step of learning an adapter, on the card and on the processor.
#[derive(Debug, Serialize)]
pub(super) struct Learning {
    /// Of what.
    pub(super) what: String,
    /// Tokens of the pass, shared ones counted once.
    pub(super) tokens: usize,
    /// ‖card − processor‖ / ‖processor‖ of log-probabilities and entropies, of the whole gradient, and of the tensor for
    /// which it is largest.
    pub(super) scores: f64,
    pub(super) gradient: f64,
    pub(super) tensor: f64,
    /// The mean loss before and after a small step downhill.
    pub(super) card: [f64; 2],
    pub(super) processor: [f64; 2],
    /// Seconds of a pass, forwards and backwards.
    pub(super) card_seconds: f64,
    pub(super) processor_seconds: f64,
    /// Whether the differences are what rounding explains, and both went downhill.
    pub(super) holds: bool,
}

/// How long a shape took to load, and what its cache takes.
#[derive(Debug, Serialize)]
pub(super) struct Ready {
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
    /// Tokens decoded per sequence; of prefill 1, with which it ends.
    #[serde(default)]
    pub(super) tokens: usize,
    pub(super) graphs: bool,
    /// Over all sequences.
    pub(super) tokens_per_second: f64,
    /// The least time the card needs by its ceilings, as a share of the time it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_floor: Option<f64>,
    /// Milliseconds from the end of a pass to the moment when all of the next is in line, in the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gap: Option<f64>,
}

/// The agentic load, one way of serving it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Load {
    pub(super) shape: String,
    pub(super) way: String,
    #[serde(flatten)]
    pub(super) script: Script,
    /// Whether an index was searched; otherwise each search was a wait.
    pub(super) searched: bool,
    /// Milliseconds of that wait.
    #[serde(default)]
    pub(super) search_ms: f64,
    pub(super) questions_per_second: f64,
    /// Milliseconds from the end of a search to the first token after it.
    pub(super) resume_p50: f64,
    pub(super) resume_p95: f64,
    /// Tokens whose KV was computed, found in the prefix cache, and computed although they had been before.
    pub(super) computed: u64,
    pub(super) cached: u64,
    pub(super) recomputed: u64,
}

/// What `scripts/bench/gpu_peer.py` writes: the same loads on another server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Peer {
    /// The card, by the name its driver gives it.
    pub(super) device: String,
    pub(super) version: String,
    pub(super) decode: Vec<Rate>,
    pub(super) prefill: Vec<Rate>,
    pub(super) agentic: Vec<Loops>,
}

/// The agentic load on another server, every turn a new request, every search a wait.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Loops {
    pub(super) shape: String,
    #[serde(flatten)]
    pub(super) script: Script,
    /// Milliseconds that each search takes.
    #[serde(default)]
    pub(super) search_ms: f64,
    pub(super) questions_per_second: f64,
}

/// Reads what was written as JSON.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no such report", path.display()))
}

/// A number; what is none was written as `null`.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Report {
    /// Adds what another run on the same device found; one that got to no device found nothing.
    pub(super) fn join(&mut self, other: Self) -> anyhow::Result<()> {
        if other.device.is_empty() {
            return Ok(());
        }
        let (own, theirs) = (&self.device, &other.device);
        ensure!(own.is_empty() || own == theirs, "the reports are of two devices: {own}; {theirs}");
        (self.device, self.version) = (other.device, other.version);
        self.agreement.extend(other.agreement);
        self.decode.extend(other.decode);
        self.prefill.extend(other.prefill);
        self.agentic.extend(other.agentic);
        self.peer = self.peer.take().or(other.peer);
        Ok(())
    }

    /// True when nothing that was compared is wrong.
    pub(super) fn holds(&self) -> bool {
        self.kernels.as_ref().is_none_or(|kernels| kernels.wrong.is_empty())
            && self.agreement.iter().all(|a| a.holds)
            && self.learning.iter().all(|learning| learning.holds)
    }

    /// Prints it for people.
    pub(super) fn print(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.device.is_empty() {
            return Ok(());
        }
        writeln!(out, "{}, waymark {}", self.device, self.version)?;
        if let Some(kernels) = &self.kernels {
            let (compared, wrong) = (kernels.compared, kernels.wrong.len());
            writeln!(out, "kernels: {compared} comparisons, {wrong} wrong, worst {:.2} of its bound", kernels.worst)?;
            kernels.wrong.iter().try_for_each(|wrong| writeln!(out, "  WRONG: {wrong}"))?;
        }
        for a in &self.agreement {
            let verdict = if a.holds { "" } else { "  WRONG" };
            let first = a.first.map_or_else(String::new, |first| format!(", first at {first}"));
            writeln!(
                out,
                "{}, {}: {} positions, {} diverged{first}; log-probability off by {:.5}, in one row by {:.5}, at most \
                 {:.5}{verdict}",
                a.what, a.over, a.positions, a.diverged, a.mean, a.row, a.largest
            )?;
        }
        for l in &self.learning {
            let verdict = if l.holds { "" } else { "  WRONG" };
            writeln!(
                out,
                "learning on {}, {} tokens: scores off by {:.2e}, the gradient by {:.2e}, one tensor's by {:.2e}; loss {:.4} to \
                 {:.4}, on the processor {:.4} to {:.4}; {:.3} s, on the processor {:.3} s{verdict}",
                l.what,
                l.tokens,
                l.scores,
                l.gradient,
                l.tensor,
                l.card[0],
                l.card[1],
                l.processor[0],
                l.processor[1],
                l.card_seconds,
                l.processor_seconds,
            )?;
        }
        if let Some(best) = self.best {
            writeln!(out, "ceilings: {:.2} TB/s, {:.0} TFLOP/s", best.bandwidth / 1e12, best.operations / 1e12)?;
        }
        for ready in &self.ready {
            let Ready { shape, seconds, kv_bytes_per_token: bytes, kv_tokens } = ready;
            writeln!(out, "{shape}: ready in {seconds:.1} s, {bytes} bytes of KV per token, {kv_tokens} tokens")?;
        }
        self.rates(out)?;
        self.loads(out)?;
        self.profiles.iter().try_for_each(|profile| profile.print(out))?;
        self.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
        self.judged(out)
    }

    fn rates(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for (name, rates) in [("decode", &self.decode), ("prefill", &self.prefill)] {
            if rates.is_empty() {
                continue;
            }
            writeln!(
                out,
                "{name:8} {:>14} {:>10} {:>7} {:>7} {:>12} {:>9} {:>7}",
                "shape", "sequences", "prompt", "graphs", "tokens/s", "of floor", "gap ms"
            )?;
            for rate in rates {
                let graphs = if rate.graphs { "on" } else { "off" };
                let floor = rate.of_floor.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0));
                let gap = rate.gap.map_or_else(|| "-".to_owned(), |gap| format!("{gap:.3}"));
                let Rate { shape, sequences, prompt, tokens_per_second: rate, .. } = rate;
                write!(out, "{:8} {shape:>14} {sequences:>10} {prompt:>7} {graphs:>7} {rate:>12.1}", "")?;
                writeln!(out, " {floor:>9} {gap:>7}")?;
            }
        }
        Ok(())
    }

    fn loads(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.agentic.is_empty() {
            return Ok(());
        }
        let head = ["questions/s", "resume p50", "p95 ms", "computed", "cached", "recomputed"];
        write!(out, "{:42}", "agentic load")?;
        head.iter().try_for_each(|name| write!(out, " {name:>11}"))?;
        for load in &self.agentic {
            let Load { shape, way, script, questions_per_second: rate, resume_p50, resume_p95, .. } = load;
            let Load { computed, cached, recomputed, .. } = load;
            let what = format!("{shape}, {} loops, {way}", script.loops);
            write!(out, "\n{what:42} {rate:>11.2} {resume_p50:>11.1} {resume_p95:>11.1}")?;
            write!(out, " {computed:>11} {cached:>11} {recomputed:>11}")?;
        }
        writeln!(out)
    }

    fn judged(&self, out: &mut dyn Write) -> std::io::Result<()> {
        if self.goals.is_empty() {
            return Ok(());
        }
        writeln!(out, "{:52} {:>12}  {:12}  measured", "goal", "asked", "verdict")?;
        for Goal { what, asked, measured, verdict } in &self.goals {
            let line = format!("{what:52} {asked:>12}  {:12}  {measured}", verdict.name());
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
