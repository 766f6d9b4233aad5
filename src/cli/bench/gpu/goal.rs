//! The goals that were set for a card, and whether what was measured meets them.

use serde::Serialize;

use super::agentic::Way;
use super::report::{GREEDY, Load, Loops, Peer, Rate, Report};

/// Shapes that steps are held to the card's ceilings in.
const LARGE: [&str; 2] = ["qwen2.5-3b", SEVEN];
const SEVEN: &str = "qwen2.5-7b";
/// Shapes in which many sequences are held to one.
const ALL: [&str; 3] = ["smollm2-135m", "qwen2.5-3b", SEVEN];
/// Numbers of sequences, up to the most, that decode steps are held to the floor at.
const SEQUENCES: [usize; 4] = [1, 8, 32, 64];
/// The share of the floor that decode is to reach, and of the matrix rate that prefill is.
const DECODE: f64 = 0.7;
const PREFILL: f64 = 0.5;
/// Prompt tokens from which prefill is bound by the matrix rate, and not by reading weights.
const BOUND_BY_RATE: usize = 1024;
/// Sequences, and how many times the tokens of one they are to give.
const MANY: usize = 32;
const MANY_GIVE: f64 = 15.0;
/// How many times the peer's rates are to be reached.
const PEER: f64 = 3.0;
/// The model whose text is compared.
const MODEL: &str = "smollm2";

/// A goal, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Goal {
    /// Of what.
    pub(super) what: String,
    /// What is asked of it.
    pub(super) asked: String,
    /// What was measured, or why it was not.
    pub(super) measured: String,
    pub(super) verdict: Verdict,
}

/// What became of a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Met,
    Missed,
    /// Nothing, or not all that it takes to say that it is met.
    NotMeasured,
}

impl Verdict {
    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::NotMeasured => "not measured",
        }
    }
}

/// How a number is said.
#[derive(Clone, Copy)]
enum Unit {
    Share,
    Times,
}

impl Unit {
    /// Rounded down: what misses does not read as what was asked.
    fn say(self, value: f64) -> String {
        match self {
            Self::Share => format!("{:.1} %", (1000.0 * value).floor() / 10.0),
            Self::Times => format!("{:.2} ×", (100.0 * value).floor() / 100.0),
        }
    }
}

/// All goals, judged by what was measured.
pub(super) fn goals(report: &Report) -> Vec<Goal> {
    let mut goals = vec![text(report)];
    goals.extend(LARGE.map(|shape| decode(report, shape)));
    goals.extend(ALL.map(|shape| many(report, shape)));
    goals.extend([prefill(report), parked(report)]);
    goals.extend(beside(report));
    goals
}

/// Greedy text on the card and on the processor.
fn text(report: &Report) -> Goal {
    let found = report.agreement.iter().filter(|agreement| agreement.what == GREEDY);
    let (real, other): (Vec<_>, Vec<_>) = found.partition(|found| found.over.to_lowercase().contains(MODEL));
    let (measured, verdict) = match real.iter().find(|found| !found.holds).or(real.first()) {
        Some(found) => {
            let verdict = if found.holds { Verdict::Met } else { Verdict::Missed };
            (format!("off by {:.4}, at most {:.4}, {} diverged", found.mean, found.largest, found.diverged), verdict)
        }
        None => {
            let over = other.first().map_or_else(String::new, |other| format!("only {}", other.over));
            (over, Verdict::NotMeasured)
        }
    };
    let what = "text of SmolLM2 on card and processor".to_owned();
    Goal { what, asked: "rounding only".to_owned(), measured, verdict }
}

/// Decode rates of a shape against the floor.
fn decode(report: &Report, shape: &str) -> Goal {
    let most = SEQUENCES.into_iter().max().unwrap_or(0);
    let rates: Vec<&Rate> = of_card(&report.decode, shape).filter(|rate| rate.sequences <= most).collect();
    let left = SEQUENCES.into_iter().filter(|count| rates.iter().all(|rate| rate.sequences != *count));
    let left: Vec<String> = left.map(|count| count.to_string()).collect();
    let left = if left.is_empty() || rates.is_empty() { String::new() } else { format!("none at {}", left.join(", ")) };
    let shares = rates.iter().filter_map(|rate| Some((format!("at {}", rate.sequences), rate.of_floor?)));
    let what = format!("decode, {shape}, 1 to {most} sequences, of the floor");
    least(what, Unit::Share, DECODE, &shares.collect::<Vec<_>>(), &left)
}

/// What many sequences of a shape give together, against one.
fn many(report: &Report, shape: &str) -> Goal {
    let rate = |count: usize| of_card(&report.decode, shape).find(|rate| rate.sequences == count);
    let both = rate(1).zip(rate(MANY));
    let times = both.and_then(|(one, many)| ratio(String::new(), many.tokens_per_second, one.tokens_per_second));
    let found: Vec<_> = times.into_iter().collect();
    least(format!("decode, {shape}, {MANY} sequences, of one"), Unit::Times, MANY_GIVE, &found, "")
}

/// Prefill against the matrix rate.
fn prefill(report: &Report) -> Goal {
    let long = |rate: &&Rate| rate.sequences * rate.prompt >= BOUND_BY_RATE;
    let rates = of_card(&report.prefill, SEVEN).filter(long);
    let shares =
        rates.filter_map(|rate| Some((format!("{} × {} tokens", rate.sequences, rate.prompt), rate.of_floor?)));
    let what = format!("prefill, {SEVEN}, of the matrix rate");
    least(what, Unit::Share, PREFILL, &shares.collect::<Vec<_>>(), "")
}

/// What a card measured in a shape, the faster way: only a card's rates have a floor.
fn of_card<'a>(rates: &'a [Rate], shape: &str) -> impl Iterator<Item = &'a Rate> {
    rates.iter().filter(move |rate| rate.shape == shape && rate.graphs && rate.of_floor.is_some())
}

/// Tokens that parked loops computed again.
fn parked(report: &Report) -> Goal {
    let loads: Vec<_> = report.agentic.iter().filter(|load| load.way == Way::Parked.name()).collect();
    let (again, computed) = loads.iter().fold((0, 0), |sum, load| (sum.0 + load.recomputed, sum.1 + load.computed));
    let (measured, verdict) = match again {
        _ if loads.is_empty() => (String::new(), Verdict::NotMeasured),
        0 => (format!("0 of {computed}"), Verdict::Met),
        _ => (format!("{again} of {computed}"), Verdict::Missed),
    };
    let what = "agentic load, parked, tokens computed again".to_owned();
    Goal { what, asked: "0".to_owned(), measured, verdict }
}

/// Rates against the peer's: decode, prefill and the agentic load, each where both were measured at the same.
fn beside(report: &Report) -> [Goal; 3] {
    let peer = report.peer.as_ref();
    // What it is called, without what else is known of it: some cards' names begin with other ones'.
    let card = report.device.split(',').next().unwrap_or_default();
    let elsewhere = peer.filter(|peer| peer.device != card);
    let left = elsewhere.map_or_else(String::new, |peer| format!("the peer ran on {}", peer.device));
    let peer = peer.filter(|_| left.is_empty());
    let decode = peer.map_or_else(Vec::new, |peer| ratios(&report.decode, &peer.decode));
    let prefill = peer.map_or_else(Vec::new, |peer| ratios(&report.prefill, &peer.prefill));
    let agentic = peer.map_or_else(Vec::new, |peer| loops(report, peer));
    [("decode", decode), ("prefill", prefill), ("agentic load, parked", agentic)].map(|(what, found)| {
        let goal = least(format!("{what}, of the peer"), Unit::Times, PEER, &found, &left);
        match found.len() {
            0 => goal,
            count => Goal { measured: format!("{}, the worst of {count}", goal.measured), ..goal },
        }
    })
}

/// Rates over the peer's at the same shape, sequences, prompt and tokens: ours by graphs, the peer's as it does it.
fn ratios(own: &[Rate], peers: &[Rate]) -> Vec<(String, f64)> {
    let load = |rate: &Rate| (rate.shape.clone(), rate.sequences, rate.prompt, rate.tokens);
    let same = |own: &Rate, peer: &Rate| own.graphs && load(own) == load(peer);
    let of = |peer: &Rate| {
        let own = own.iter().find(|own| same(own, peer))?;
        let at = format!("{}, {} sequences", peer.shape, peer.sequences);
        ratio(at, own.tokens_per_second, peer.tokens_per_second)
    };
    peers.iter().filter_map(of).collect()
}

/// Parked loops over the peer's, which submits every turn anew, where ours did the same and waited for its searches as long.
fn loops(report: &Report, peer: &Peer) -> Vec<(String, f64)> {
    let waited = || report.agentic.iter().filter(|load| load.way == Way::Parked.name() && !load.searched);
    let of = |peer: &Loops| {
        let same =
            |own: &&Load| own.shape == peer.shape && own.script == peer.script && own.search_ms == peer.search_ms;
        let own = waited().find(same)?;
        ratio(peer.shape.clone(), own.questions_per_second, peer.questions_per_second)
    };
    peer.agentic.iter().filter_map(of).collect()
}

/// A ratio to a rate that is one.
fn ratio(at: String, own: f64, peer: f64) -> Option<(String, f64)> {
    (peer.is_finite() && peer > 0.0).then(|| (at, own / peer))
}

/// A goal that everything found reaches at least `asked`; the worst of it, with its place, is told. `left` says what would
/// be needed besides, to say that it is met.
fn least(what: String, unit: Unit, asked: f64, found: &[(String, f64)], left: &str) -> Goal {
    let reached = found.iter().all(|(_, value)| *value >= asked);
    let verdict = match reached {
        false => Verdict::Missed,
        true if found.is_empty() || !left.is_empty() => Verdict::NotMeasured,
        true => Verdict::Met,
    };
    // What is no number is the worst.
    let number = |value: f64| if value.is_nan() { f64::NEG_INFINITY } else { value };
    let worst = found.iter().min_by(|a, b| number(a.1).total_cmp(&number(b.1)));
    let worst = worst.map(|(at, value)| format!("{} {at}", unit.say(*value)).trim_end().to_owned());
    let parts: Vec<&str> = worst.as_deref().into_iter().chain((!left.is_empty()).then_some(left)).collect();
    Goal { what, asked: format!("≥ {}", unit.say(asked)), measured: parts.join("; "), verdict }
}

#[cfg(test)]
mod tests;
