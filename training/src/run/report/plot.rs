//! Contents of a figure: lines, dots and tooltips.

use super::chart::{ChartFrame, strip};
use super::figure::Figure;
use super::phase::RunPhase;
use super::series::{Point, Series};

/// Maximum number of points of a line. A longer line is drawn as the range of each group of points.
const POINTS: usize = 400;
/// Maximum number of tooltips of a figure.
const TIPS: usize = 64;
/// Maximum number of measurements that are also drawn as dots.
const DOTS: usize = 24;

/// Draws the measurements as a faint line below the smoothed line.
pub(super) fn lines(frame: &ChartFrame, series: &Series, at: usize) -> String {
    let color = color(at);
    let mut drawn = String::new();
    for line in series.lines() {
        if series.span > 1 {
            drawn += &path("raw", color, &thinned(frame, line, |point| point.value));
        }
        drawn += &path("line", color, &thinned(frame, line, |point| point.smooth));
    }
    if series.points.len() <= DOTS {
        for point in &series.points {
            let x = frame.x(point.step as f64);
            let y = frame.y(point.value);
            drawn += &format!("<circle class='dot {color}' cx='{x:.1}' cy='{y:.1}' r='2.4'/>");
        }
    }
    drawn
}

/// Draws invisible strips over a figure, whose tooltips show the values of a step.
pub(super) fn tips(frame: &ChartFrame, figure: &Figure, phases: &[RunPhase]) -> String {
    let mut steps: Vec<_> =
        figure.series.iter().flat_map(|series| series.points.iter().map(|point| point.step)).collect();
    steps.sort_unstable();
    steps.dedup();
    let group = steps.len().div_ceil(TIPS).max(1);
    let groups: Vec<_> = steps.chunks(group).collect();
    let strip = |(at, group): (usize, &&[u64])| {
        let first = *group.first()?;
        let last = *group.last()?;
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

/// Returns the CSS class with the color of series `at`. Colors repeat after six.
pub(super) fn color(at: usize) -> &'static str {
    ["s0", "s1", "s2", "s3", "s4", "s5"][at % 6]
}

/// Returns the drawn points of a line. A long line is thinned to the lowest and the highest point of each group, in
/// step order, so that its extremes stay visible.
fn thinned(frame: &ChartFrame, line: &[Point], value: impl Fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let position = |point: &Point| (frame.x(point.step as f64), frame.y(value(point)));
    if line.len() <= POINTS {
        return line.iter().map(position).collect();
    }
    let extremes = |group: &[Point]| {
        let low = group.iter().min_by(|a, b| value(a).total_cmp(&value(b))).copied();
        let high = group.iter().max_by(|a, b| value(a).total_cmp(&value(b))).copied();
        let mut pair: Vec<_> = low.into_iter().chain(high).collect();
        pair.sort_by_key(|point| point.step);
        pair.iter().map(position).collect::<Vec<_>>()
    };
    line.chunks(line.len().div_ceil(POINTS / 2)).flat_map(extremes).collect()
}

fn path(class: &str, color: &str, points: &[(f64, f64)]) -> String {
    if points.len() < 2 {
        return String::new();
    }
    let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    format!("<path class='{class} {color}' d='M{}'/>", points.join("L"))
}
