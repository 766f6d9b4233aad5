//! Performance goals for a GPU, judged by the measurements.

use serde::Serialize;

use super::agentic::TurnMode;
use super::rates::RateSampling;
use super::report::{AgenticLoad, GREEDY, GpuReport, Peer, PeerLoad, Rate};

/// Shapes whose steps are compared with the GPU's peak rates.
const LARGE: [&str; 2] = ["qwen2.5-3b", QWEN_7B];
const QWEN_7B: &str = "qwen2.5-7b";
/// Shapes in which the rate of many sequences is compared with that of one.
const ALL: [&str; 3] = ["smollm2-135m", "qwen2.5-3b", QWEN_7B];
/// Required numbers of sequences for comparing decoding with the floor. Other measured numbers up to the largest of
/// these are judged as well.
const SEQUENCES: [usize; 4] = [1, 8, 32, 64];
/// Required [`Rate::of_floor`] for decoding.
const DECODE: f64 = 0.7;
/// Required [`Rate::of_floor`] for prefill.
const PREFILL: f64 = 0.5;
/// Number of prompt tokens from which prefill is bound by arithmetic rather than by reading weights.
const BOUND_BY_RATE: usize = 1024;
/// Number of sequences to compare with a single one.
const MANY: usize = 32;
/// Required rate of [`MANY`] sequences, as a multiple of the rate of one.
const MANY_GIVE: f64 = 15.0;
/// Required rate as a multiple of the peer's.
const PEER: f64 = 3.0;
/// Part of the name of the model whose text is compared.
const MODEL: &str = "smollm2";

/// A goal with its measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SpeedGoal {
    /// Measured quantity.
    pub(super) what: String,
    /// Required value.
    pub(super) asked: String,
    /// Measured value, or the reason why there is none.
    pub(super) measured: String,
    pub(super) verdict: GoalVerdict,
}

/// Verdict on a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GoalVerdict {
    Met,
    Missed,
    /// Not measured, or not at all required points.
    NotMeasured,
}

impl GoalVerdict {
    /// Returns the verdict as printed.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::NotMeasured => "not measured",
        }
    }
}

/// Unit of a number.
#[derive(Clone, Copy)]
enum GoalUnit {
    Share,
    Times,
}

impl GoalUnit {
    /// Formats a value, rounded down so that a missed goal never reads as the required value.
    fn say(self, value: f64) -> String {
        match self {
            Self::Share => format!("{:.1} %", (1000.0 * value).floor() / 10.0),
            Self::Times => format!("{:.2} ×", (100.0 * value).floor() / 100.0),
        }
    }
}

/// Judges all goals.
pub(super) fn goals(report: &GpuReport) -> Vec<SpeedGoal> {
    let mut goals = vec![text(report)];
    goals.extend(LARGE.map(|shape| decode(report, shape)));
    goals.extend(ALL.map(|shape| many(report, shape)));
    goals.extend([prefill(report), parked(report)]);
    goals.extend(against_peer(report));
    goals
}

/// Judges greedy text on GPU and CPU.
fn text(report: &GpuReport) -> SpeedGoal {
    let found = report.agreement.iter().filter(|agreement| agreement.what == GREEDY);
    let (real, other): (Vec<_>, Vec<_>) = found.partition(|found| found.over.to_lowercase().contains(MODEL));
    // One comparison that fails outweighs those that hold.
    let (measured, verdict) = match real.iter().find(|found| !found.holds).or(real.first()) {
        Some(found) => {
            let verdict = if found.holds { GoalVerdict::Met } else { GoalVerdict::Missed };
            (
                format!("mean difference {:.4}, at most {:.4}, {} diverged", found.mean, found.largest, found.diverged),
                verdict,
            )
        }
        None => {
            let over = other.first().map_or_else(String::new, |other| format!("only {}", other.over));
            (over, GoalVerdict::NotMeasured)
        }
    };
    let what = "text of SmolLM2 on GPU and CPU".to_owned();
    SpeedGoal { what, asked: "rounding only".to_owned(), measured, verdict }
}

/// Judges the decode rates of a shape against the floor.
fn decode(report: &GpuReport, shape: &str) -> SpeedGoal {
    let most = SEQUENCES.into_iter().max().unwrap_or(0);
    let rates: Vec<&Rate> = on_gpu(&report.decode, shape).filter(|rate| rate.sequences <= most).collect();
    let left = SEQUENCES.into_iter().filter(|count| rates.iter().all(|rate| rate.sequences != *count));
    let left: Vec<String> = left.map(|count| count.to_string()).collect();
    let left = if left.is_empty() || rates.is_empty() { String::new() } else { format!("none at {}", left.join(", ")) };
    let shares = rates.iter().filter_map(|rate| Some((format!("at {}", rate.sequences), rate.of_floor?)));
    let what = format!("decode, {shape}, 1 to {most} sequences, of the floor");
    at_least(what, GoalUnit::Share, DECODE, &shares.collect::<Vec<_>>(), &left)
}

/// Judges the rate of many sequences against that of one.
fn many(report: &GpuReport, shape: &str) -> SpeedGoal {
    let rate = |count: usize| on_gpu(&report.decode, shape).find(|rate| rate.sequences == count);
    let both = rate(1).zip(rate(MANY));
    let times = both.and_then(|(one, many)| ratio(String::new(), many.tokens_per_second, one.tokens_per_second));
    let found: Vec<_> = times.into_iter().collect();
    at_least(format!("decode, {shape}, {MANY} sequences, of one"), GoalUnit::Times, MANY_GIVE, &found, "")
}

/// Judges prefill against the peak matrix rate.
fn prefill(report: &GpuReport) -> SpeedGoal {
    let long = |rate: &&Rate| rate.sequences * rate.prompt >= BOUND_BY_RATE;
    let rates = on_gpu(&report.prefill, QWEN_7B).filter(long);
    let shares =
        rates.filter_map(|rate| Some((format!("{} × {} tokens", rate.sequences, rate.prompt), rate.of_floor?)));
    let what = format!("prefill, {QWEN_7B}, of the matrix rate");
    at_least(what, GoalUnit::Share, PREFILL, &shares.collect::<Vec<_>>(), "")
}

/// Returns `true` for a rate that goals are judged by: of greedy decoding with CUDA graphs.
fn counts(rate: &Rate) -> bool {
    rate.graphs && rate.sampling == RateSampling::Greedy
}

/// Returns the rates of a shape on a GPU that goals are judged by. Only rates on a GPU have a floor.
fn on_gpu<'a>(rates: &'a [Rate], shape: &str) -> impl Iterator<Item = &'a Rate> {
    rates.iter().filter(move |rate| counts(rate) && rate.shape == shape && rate.of_floor.is_some())
}

/// Judges the number of recomputed tokens of parked loops.
fn parked(report: &GpuReport) -> SpeedGoal {
    let loads: Vec<_> = report.agentic.iter().filter(|load| load.way == TurnMode::Parked.name()).collect();
    let (again, computed) = loads.iter().fold((0, 0), |sum, load| (sum.0 + load.recomputed, sum.1 + load.computed));
    let (measured, verdict) = match again {
        _ if loads.is_empty() => (String::new(), GoalVerdict::NotMeasured),
        0 => (format!("0 of {computed}"), GoalVerdict::Met),
        _ => (format!("{again} of {computed}"), GoalVerdict::Missed),
    };
    let what = "agentic load, parked, tokens computed again".to_owned();
    SpeedGoal { what, asked: "0".to_owned(), measured, verdict }
}

/// Judges decode, prefill and agentic rates against the peer's, where both were measured on the same load.
fn against_peer(report: &GpuReport) -> [SpeedGoal; 3] {
    let peer = report.peer.as_ref();
    // Compare the whole product name: names of some GPUs are prefixes of others.
    let gpu = report.device.split(',').next().unwrap_or_default();
    let elsewhere = peer.filter(|peer| peer.device != gpu);
    let left = elsewhere.map_or_else(String::new, |peer| format!("the peer ran on {}", peer.device));
    let peer = peer.filter(|_| left.is_empty());
    let decode = peer.map_or_else(Vec::new, |peer| ratios(&report.decode, &peer.decode));
    let prefill = peer.map_or_else(Vec::new, |peer| ratios(&report.prefill, &peer.prefill));
    let agentic = peer.map_or_else(Vec::new, |peer| loops(report, peer));
    [("decode", decode), ("prefill", prefill), ("agentic load, parked", agentic)].map(|(what, found)| {
        let goal = at_least(format!("{what}, of the peer"), GoalUnit::Times, PEER, &found, &left);
        match found.len() {
            0 => goal,
            count => SpeedGoal { measured: format!("{}, the worst of {count}", goal.measured), ..goal },
        }
    })
}

/// Returns the ratios to the peer's rates, which are greedy, at the same shape, sequences, prompt and tokens.
fn ratios(own: &[Rate], peers: &[Rate]) -> Vec<(String, f64)> {
    let load = |rate: &Rate| (rate.shape.clone(), rate.sequences, rate.prompt, rate.tokens);
    let same = |own: &Rate, peer: &Rate| counts(own) && load(own) == load(peer);
    let of = |peer: &Rate| {
        let own = own.iter().find(|own| same(own, peer))?;
        let at = format!("{}, {} sequences", peer.shape, peer.sequences);
        ratio(at, own.tokens_per_second, peer.tokens_per_second)
    };
    peers.iter().filter_map(of).collect()
}

/// Returns the ratios of parked loops to the peer's loops, which resubmit every turn, for equal scripts and search
/// waits.
fn loops(report: &GpuReport, peer: &Peer) -> Vec<(String, f64)> {
    let waited = || report.agentic.iter().filter(|load| load.way == TurnMode::Parked.name() && !load.searched);
    let of = |peer: &PeerLoad| {
        let same = |own: &&AgenticLoad| {
            own.shape == peer.shape && own.script == peer.script && own.search_ms == peer.search_ms
        };
        let own = waited().find(same)?;
        ratio(peer.shape.clone(), own.questions_per_second, peer.questions_per_second)
    };
    peer.agentic.iter().filter_map(of).collect()
}

/// Returns the label `at` with the ratio of `own` to `peer`. `None` if `peer` is not a positive finite number.
fn ratio(at: String, own: f64, peer: f64) -> Option<(String, f64)> {
    (peer.is_finite() && peer > 0.0).then(|| (at, own / peer))
}

/// Creates a goal that requires every found value to be at least `asked`, and reports the worst of them with its label.
/// A non-empty `left` names missing measurements; the goal is then not met.
fn at_least(what: String, unit: GoalUnit, asked: f64, found: &[(String, f64)], left: &str) -> SpeedGoal {
    let reached = found.iter().all(|(_, value)| *value >= asked);
    // A value that is too low misses the goal even if other measurements are missing.
    let verdict = match reached {
        false => GoalVerdict::Missed,
        true if found.is_empty() || !left.is_empty() => GoalVerdict::NotMeasured,
        true => GoalVerdict::Met,
    };
    // NaN counts as the worst.
    let number = |value: f64| if value.is_nan() { f64::NEG_INFINITY } else { value };
    let worst = found.iter().min_by(|a, b| number(a.1).total_cmp(&number(b.1)));
    let worst = worst.map(|(at, value)| format!("{} {at}", unit.say(*value)).trim_end().to_owned());
    let parts: Vec<&str> = worst.as_deref().into_iter().chain((!left.is_empty()).then_some(left)).collect();
    SpeedGoal { what, asked: format!("≥ {}", unit.say(asked)), measured: parts.join("; "), verdict }
}

#[cfg(test)]
mod tests;
