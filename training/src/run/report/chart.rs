//! A figure as SVG: its frame, and what is drawn in it.

use super::axis::Axis;
use super::catalogue::Kind;
use super::escape;
use super::figure::Figure;
use super::number::{Unit, whole};
use super::phase::Phase;
use super::plot;
use super::series::Series;

/// In units of the drawing, which is scaled to the width of its card.
pub(super) const WIDTH: f64 = 340.0;
pub(super) const HEIGHT: f64 = 196.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = HEIGHT - 24.0;

/// Where things lie in a drawing.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) steps: Axis,
    pub(super) values: Axis,
}

impl Frame {
    pub(super) fn x(&self, step: f64) -> f64 {
        LEFT + self.steps.place(step) * (RIGHT - LEFT)
    }

    /// What lies far beyond the axis is cut off by the drawing; numbers stay small.
    pub(super) fn y(&self, value: f64) -> f64 {
        BOTTOM - self.values.place(value).clamp(-1.0, 2.0) * (BOTTOM - TOP)
    }
}

/// Draws a figure. `id` tells it from the other ones of the page.
pub(super) fn draw(figure: &Figure, phases: &[Phase], steps: (u64, u64), id: usize) -> String {
    let values = match figure.look.kind {
        Kind::Mix => Axis::around(0.0, 1.0, 4),
        Kind::Lines => value_axis(figure),
    };
    let frame = Frame { steps: Axis::within(steps.0, steps.1, 5), values };
    let drawn = match figure.look.kind {
        Kind::Lines => figure.series.iter().enumerate().map(|(at, series)| plot::lines(&frame, series, at)).collect(),
        Kind::Mix => plot::mix(&frame, &figure.series),
    };
    let marks = |(at, series)| marks(&frame, figure, series, plot::colour(at));
    let marks: String = figure.series.iter().enumerate().map(marks).collect();
    format!(
        "<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{}'>\
         <clipPath id='c{id}'><rect x='{LEFT}' y='{}' width='{}' height='{}'/></clipPath>\
         {}{}<g clip-path='url(#c{id})'>{drawn}</g>{}{marks}</svg>",
        escape(&describe(figure)),
        TOP - 2.0,
        RIGHT - LEFT,
        BOTTOM - TOP + 4.0,
        bands(&frame, phases),
        grid(&frame, figure.look.unit),
        plot::tips(&frame, figure, phases),
    )
}

/// The strip of a tip from one step to another.
pub(super) fn strip(frame: &Frame, from: f64, to: f64, tip: &str) -> String {
    let (from, to) = (frame.x(from).max(LEFT), frame.x(to).min(RIGHT));
    let width = (to - from).max(0.5);
    format!(
        "<rect class='tip' x='{from:.1}' y='{TOP}' width='{width:.1}' height='{}'><title>{}</title></rect>",
        BOTTOM - TOP,
        escape(tip)
    )
}

/// The range of everything; but where the outermost hundredth of the measurements would more than double it, the range
/// without them: a single spike must not flatten everything else.
fn value_axis(figure: &Figure) -> Axis {
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let mut values: Vec<_> = points().map(|point| point.value).collect();
    values.sort_by(f64::total_cmp);
    let cut = values.len() / 100;
    let inner = values.get(cut..values.len() - cut).unwrap_or_default();
    let smooth: Vec<_> = points().map(|point| point.smooth).collect();
    let (all, inner) = (range(&[&values]), range(&[inner, &smooth]));
    let (mut low, mut high) = if all.1 - all.0 > 2.0 * (inner.1 - inner.0) { inner } else { all };
    if figure.look.from_zero && low <= high {
        (low, high) = (low.min(0.0), high.max(0.0));
    }
    let axis = Axis::around(low, high, 4);
    // There is no 102 %.
    if figure.look.unit == Unit::Share && high <= 1.0 { axis.upto(1.0) } else { axis }
}

fn range(values: &[&[f64]]) -> (f64, f64) {
    let values = || values.iter().copied().flatten().copied();
    (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
}

/// Every other phase lies on a band; all of them are named, if there is more than one.
fn bands(frame: &Frame, phases: &[Phase]) -> String {
    if phases.len() < 2 {
        return String::new();
    }
    let band = |(at, phase): (usize, &Phase)| {
        let from = if at == 0 { LEFT } else { frame.x(phase.from as f64 - 0.5).max(LEFT) };
        let to = phases.get(at + 1).map_or(RIGHT, |next| frame.x(next.from as f64 - 0.5).min(RIGHT));
        let band = match at % 2 {
            1 => format!(
                "<rect class='band' x='{from:.1}' y='{TOP}' width='{:.1}' height='{}'/>",
                to - from,
                BOTTOM - TOP
            ),
            _ => String::new(),
        };
        // About six units a letter.
        let fits = to - from > 6.0 * phase.name.chars().count() as f64 + 6.0;
        let name = if fits {
            format!("<text class='phase' x='{:.1}' y='{}'>{}</text>", from + 3.0, TOP - 6.0, escape(&phase.name))
        } else {
            String::new()
        };
        band + &name
    };
    phases.iter().enumerate().map(band).collect()
}

fn grid(frame: &Frame, unit: Unit) -> String {
    let value = |&tick: &f64| {
        let (y, label) = (frame.y(tick), unit.tick(tick, frame.values.step));
        let class = if tick == 0.0 || tick == frame.values.low { "base" } else { "grid" };
        format!(
            "<line class='{class}' x1='{LEFT}' x2='{RIGHT}' y1='{y:.1}' y2='{y:.1}'/>\
             <text class='y' x='{}' y='{:.1}'>{}</text>",
            LEFT - 6.0,
            y + 3.5,
            escape(&label)
        )
    };
    let step = |&tick: &f64| {
        let (x, label) = (frame.x(tick), whole(tick as u64));
        // About seven units a digit, half of them to the right: the last label must not be cut off.
        let x = x.min(WIDTH - 3.5 * label.len() as f64);
        format!("<text class='x' x='{x:.1}' y='{}'>{label}</text>", BOTTOM + 15.0)
    };
    frame.values.ticks.iter().map(value).chain(frame.steps.ticks.iter().map(step)).collect()
}

/// Where a measurement was not a finite number, at the foot; where it lies beyond the axis, at the upper or lower end.
fn marks(frame: &Frame, figure: &Figure, series: &Series, colour: &str) -> String {
    let mark = |class: &str, step: u64, shape: String, value: String| {
        let (x, tip) = (frame.x(step as f64), format!("step {step}: {} is {value}", series.label));
        format!("<path class='{class}' d='M{x:.1} {shape}'><title>{}</title></path>", escape(&tip))
    };
    let broken = series
        .broken
        .iter()
        .map(|&(step, value)| mark("broken", step, format!("{BOTTOM}l-4 -7h8z"), value.to_string()));
    let drawn = if figure.look.kind == Kind::Lines { series.points.as_slice() } else { &[] };
    let beyond = drawn.iter().filter_map(|point| {
        let shape = match frame.values.place(point.value) {
            // A little more than the last tick is still within the drawing.
            place if place > 1.01 => format!("{}l-3 5h6z", TOP - 1.0),
            place if place < -0.01 => format!("{}l-3 -5h6z", BOTTOM + 1.0),
            _ => return None,
        };
        Some(mark(&format!("beyond {colour}"), point.step, shape, figure.look.unit.show(point.value)))
    });
    broken.chain(beyond).collect()
}

/// For those who do not see the drawing.
fn describe(figure: &Figure) -> String {
    let of = |series: &Series| {
        let summary = series.summary(true)?;
        let (first, last) = (figure.look.unit.show(summary.first), figure.look.unit.show(summary.last));
        Some(format!("{} from {first} to {last}", series.label))
    };
    let series: Vec<_> = figure.series.iter().filter_map(of).collect();
    format!("{}: {}", figure.title, series.join("; "))
}
