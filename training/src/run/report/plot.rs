//! What is drawn inside of a figure's frame: lines, areas, and the tips that say the numbers.

use super::catalogue::Kind;
use super::chart::{Frame, strip};
use super::figure::Figure;
use super::number::Unit;
use super::phase::Phase;
use super::series::{Point, Series};

/// More points than this are drawn as the range they span, a pair for each of so many groups.
const POINTS: usize = 400;
/// Tips of a figure.
const TIPS: usize = 64;
/// Up to so many measurements are drawn as dots as well.
const DOTS: usize = 24;

/// The measurements as a faint line, and the smooth line over it.
pub(super) fn lines(frame: &Frame, series: &Series, at: usize) -> String {
    let colour = colour(at);
    let mut drawn = String::new();
    for line in series.lines() {
        if series.span > 1 {
            drawn += &path("raw", colour, &ranges(frame, line));
        }
        drawn += &path("line", colour, &middles(frame, line, |point| point.smooth));
    }
    if series.points.len() <= DOTS {
        for point in &series.points {
            let (x, y) = (frame.x(point.step as f64), frame.y(point.value));
            drawn += &format!("<circle class='dot {colour}' cx='{x:.1}' cy='{y:.1}' r='2.4'/>");
        }
    }
    drawn
}

/// Areas upon each other: the share that each series has in the sum of the smooth lines.
pub(super) fn mix(frame: &Frame, series: &[Series]) -> String {
    let shares = shares(series);
    let mut drawn = String::new();
    for part in 0..series.len() {
        for run in shares.chunk_by(|_, next| !next.begins) {
            let edge = |upto: usize| {
                let at = move |share: &Shares| (share.step as f64, share.parts[..upto].iter().sum::<f64>());
                run.iter().map(at).collect::<Vec<_>>()
            };
            let (mut low, mut high) = (edge(part), edge(part + 1));
            if run.len() == 1 {
                // A single step would have no area.
                low = vec![(low[0].0 - 0.4, low[0].1), (low[0].0 + 0.4, low[0].1)];
                high = vec![(high[0].0 - 0.4, high[0].1), (high[0].0 + 0.4, high[0].1)];
            }
            let place = |&(step, share): &(f64, f64)| format!("{:.1} {:.1}", frame.x(step), frame.y(share));
            let outline: Vec<_> = high.iter().map(place).chain(low.iter().rev().map(place)).collect();
            drawn += &format!("<path class='area {}' d='M{}z'/>", colour(part), outline.join("L"));
        }
    }
    drawn
}

/// Invisible strips over a figure; each says the numbers of a step.
pub(super) fn tips(frame: &Frame, figure: &Figure, phases: &[Phase]) -> String {
    let mut steps: Vec<_> =
        figure.series.iter().flat_map(|series| series.points.iter().map(|point| point.step)).collect();
    steps.sort_unstable();
    steps.dedup();
    let group = steps.len().div_ceil(TIPS).max(1);
    let groups: Vec<_> = steps.chunks(group).collect();
    let strip = |(at, group): (usize, &&[u64])| {
        let (first, last) = (*group.first()?, *group.last()?);
        let step = group[group.len() / 2];
        let from = at
            .checked_sub(1)
            .and_then(|at| groups[at].last())
            .map_or(first as f64 - 0.5, |&before| (before + first) as f64 / 2.0);
        let to = groups
            .get(at + 1)
            .and_then(|next| next.first())
            .map_or(last as f64 + 0.5, |&next| (last + next) as f64 / 2.0);
        let phase = phases
            .iter()
            .rev()
            .find(|phase| phase.from <= step)
            .map_or(String::new(), |phase| format!(" · {}", phase.name));
        let mut tip = format!("step {step}{phase}");
        if figure.look.kind == Kind::Mix {
            return Some(strip(frame, from, to, &(tip + &mix_tip(&figure.series, step))));
        }
        for series in &figure.series {
            if let Some(point) = series.points.iter().rev().find(|point| point.step == step) {
                tip += &format!("\n{}: {}", series.label, figure.look.unit.show(point.value));
                if series.span > 1 {
                    tip += &format!(" (smoothed {})", figure.look.unit.show(point.smooth));
                }
            }
        }
        Some(strip(frame, from, to, &tip))
    };
    groups.iter().enumerate().filter_map(strip).collect()
}

/// The class that colours the series at a place; the seventh looks as the first.
pub(super) fn colour(at: usize) -> &'static str {
    ["s0", "s1", "s2", "s3", "s4", "s5"][at % 6]
}

/// What was measured, and the share that is drawn.
fn mix_tip(series: &[Series], step: u64) -> String {
    let shares = shares(series);
    let parts = shares.iter().rev().find(|shares| shares.step <= step).map(|shares| shares.parts.as_slice());
    let line = |(series, share): (&Series, &f64)| {
        let point = series.points.iter().rev().find(|point| point.step == step)?;
        Some(format!("\n{}: {} ({})", series.label, Unit::Plain.show(point.value), Unit::Share.show(*share)))
    };
    series.iter().zip(parts.unwrap_or_default()).filter_map(line).collect()
}

/// What each series is of the whole at a step.
pub(super) struct Shares {
    step: u64,
    begins: bool,
    pub(super) parts: Vec<f64>,
}

/// The shares at every step at which anything was measured. A step without any search repeats the shares before it.
pub(super) fn shares(series: &[Series]) -> Vec<Shares> {
    let mut steps: Vec<_> =
        series.iter().flat_map(|series| series.points.iter().map(|point| (point.step, point.begins))).collect();
    steps.sort_unstable_by_key(|&(step, begins)| (step, !begins));
    steps.dedup_by_key(|&mut (step, _)| step);
    let value = |series: &Series, step| {
        let at = series.points.partition_point(|point| point.step < step);
        series.points.get(at).filter(|point| point.step == step).map_or(0.0, |point| point.smooth.max(0.0))
    };
    let every = steps.len().div_ceil(POINTS).max(1);
    let mut shares: Vec<Shares> = Vec::new();
    for (at, (step, begins)) in steps.iter().copied().enumerate() {
        if at % every != 0 && !begins && at + 1 != steps.len() {
            continue;
        }
        let values: Vec<f64> = series.iter().map(|series| value(series, step)).collect();
        let sum: f64 = values.iter().sum();
        let parts = if sum > 0.0 {
            values.iter().map(|value| value / sum).collect()
        } else {
            shares.last().map_or_else(|| vec![0.0; series.len()], |before| before.parts.clone())
        };
        shares.push(Shares { step, begins, parts });
    }
    shares
}

/// All points, or the lowest and the highest of each group in the order in which they come.
fn ranges(frame: &Frame, line: &[Point]) -> Vec<(f64, f64)> {
    let place = |point: &Point| (frame.x(point.step as f64), frame.y(point.value));
    if line.len() <= POINTS {
        return line.iter().map(place).collect();
    }
    let range = |group: &[Point]| {
        let low = group.iter().min_by(|a, b| a.value.total_cmp(&b.value)).copied();
        let high = group.iter().max_by(|a, b| a.value.total_cmp(&b.value)).copied();
        let mut pair: Vec<_> = [low, high].into_iter().flatten().collect();
        pair.sort_by_key(|point| point.step);
        pair.iter().map(place).collect::<Vec<_>>()
    };
    line.chunks(line.len().div_ceil(POINTS / 2)).flat_map(range).collect()
}

/// All points, or the last one of each group.
fn middles(frame: &Frame, line: &[Point], value: impl Fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let groups = line.chunks(line.len().div_ceil(POINTS).max(1));
    let first = line.first().filter(|_| line.len() > POINTS);
    first
        .into_iter()
        .chain(groups.filter_map(<[Point]>::last))
        .map(|point| (frame.x(point.step as f64), frame.y(value(point))))
        .collect()
}

fn path(class: &str, colour: &str, points: &[(f64, f64)]) -> String {
    if points.len() < 2 {
        return String::new();
    }
    let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    format!("<path class='{class} {colour}' d='M{}'/>", points.join("L"))
}
