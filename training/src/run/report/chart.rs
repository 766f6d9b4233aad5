//! Figures as SVG: axes, phases and marks around the plotted contents.

use waymark_runtime::escape_html;

use super::axis::Axis;
use super::figure::Figure;
use super::number::{NumberUnit, whole};
use super::phase::RunPhase;
use super::plot;
use super::series::Series;

/// Size in units of the drawing, which is scaled to the width of its card.
pub(super) const WIDTH: f64 = 340.0;
pub(super) const HEIGHT: f64 = 196.0;
const LEFT: f64 = 54.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = HEIGHT - 24.0;

/// Coordinate system of a drawing.
#[derive(Debug)]
pub(super) struct ChartFrame {
    pub(super) steps: Axis,
    pub(super) values: Axis,
}

impl ChartFrame {
    pub(super) fn x(&self, step: f64) -> f64 {
        LEFT + self.steps.position(step) * (RIGHT - LEFT)
    }

    /// Returns the vertical position of a value. Values far beyond the axis are clamped, because the drawing clips
    /// them anyway and coordinates stay short.
    pub(super) fn y(&self, value: f64) -> f64 {
        BOTTOM - self.values.position(value).clamp(-1.0, 2.0) * (BOTTOM - TOP)
    }
}

/// Draws a figure. `id` must be unique on the page.
pub(super) fn draw(figure: &Figure, phases: &[RunPhase], steps: (u64, u64), id: usize) -> String {
    let frame = ChartFrame { steps: Axis::for_steps(steps.0, steps.1, 5), values: value_axis(figure) };
    let lines = |(at, series)| plot::lines(&frame, series, at);
    let drawn: String = figure.series.iter().enumerate().map(lines).collect();
    let marks = |(at, series)| marks(&frame, figure, series, plot::color(at));
    let marks: String = figure.series.iter().enumerate().map(marks).collect();
    format!(
        "<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{}'>\
         <clipPath id='c{id}'><rect x='{LEFT}' y='{}' width='{}' height='{}'/></clipPath>\
         {}{}<g clip-path='url(#c{id})'>{drawn}</g>{}{marks}</svg>",
        escape_html(&describe(figure)),
        TOP - 2.0,
        RIGHT - LEFT,
        BOTTOM - TOP + 4.0,
        bands(&frame, phases),
        grid(&frame, figure.look.unit),
        plot::tips(&frame, figure, phases),
    )
}

/// Draws the strip of a tooltip from one step to another.
pub(super) fn strip(frame: &ChartFrame, from: f64, to: f64, tip: &str) -> String {
    let from = frame.x(from).max(LEFT);
    let to = frame.x(to).min(RIGHT);
    let width = (to - from).max(0.5);
    format!(
        "<rect class='tip' x='{from:.1}' y='{TOP}' width='{width:.1}' height='{}'><title>{}</title></rect>",
        BOTTOM - TOP,
        escape_html(tip)
    )
}

/// Chooses the value axis: the range of all measurements, or without the outermost hundredth of them if they would
/// more than double it, so that a single spike does not flatten the rest.
fn value_axis(figure: &Figure) -> Axis {
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let mut values: Vec<_> = points().map(|point| point.value).collect();
    values.sort_by(f64::total_cmp);
    // At least 100 measurements are needed before any is left out.
    let cut = values.len() / 100;
    let inner = values.get(cut..values.len() - cut).unwrap_or_default();
    let smooth: Vec<_> = points().map(|point| point.smooth).collect();
    let all = range(&[&values]);
    let inner = range(&[inner, &smooth]);
    let (mut low, mut high) = if all.1 - all.0 > 2.0 * (inner.1 - inner.0) { inner } else { all };
    if figure.look.from_zero && low <= high {
        (low, high) = (low.min(0.0), high.max(0.0));
    }
    let axis = Axis::for_values(low, high, 4);
    // Shares end at 100 %.
    if figure.look.unit == NumberUnit::Share && high <= 1.0 { axis.cut_above(1.0) } else { axis }
}

fn range(values: &[&[f64]]) -> (f64, f64) {
    let values = || values.iter().copied().flatten().copied();
    (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
}

/// Shades every other phase and names all phases, if there are several.
fn bands(frame: &ChartFrame, phases: &[RunPhase]) -> String {
    if phases.len() < 2 {
        return String::new();
    }
    let band = |(at, phase): (usize, &RunPhase)| {
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
        // A letter is about six units wide.
        let fits = to - from > 6.0 * phase.name.chars().count() as f64 + 6.0;
        let name = if fits {
            format!("<text class='phase' x='{:.1}' y='{}'>{}</text>", from + 3.0, TOP - 6.0, escape_html(&phase.name))
        } else {
            String::new()
        };
        band + &name
    };
    phases.iter().enumerate().map(band).collect()
}

fn grid(frame: &ChartFrame, unit: NumberUnit) -> String {
    let value = |&tick: &f64| {
        let y = frame.y(tick);
        let label = unit.tick(tick, frame.values.step);
        let class = if tick == 0.0 || tick == frame.values.low { "base" } else { "grid" };
        format!(
            "<line class='{class}' x1='{LEFT}' x2='{RIGHT}' y1='{y:.1}' y2='{y:.1}'/>\
             <text class='y' x='{}' y='{:.1}'>{}</text>",
            LEFT - 6.0,
            y + 3.5,
            escape_html(&label)
        )
    };
    let step = |&tick: &f64| {
        let label = whole(tick as u64);
        // A digit is about seven units wide, half of it right of the center: the last label must not be cut off.
        let x = frame.x(tick).min(WIDTH - 3.5 * label.len() as f64);
        format!("<text class='x' x='{x:.1}' y='{}'>{label}</text>", BOTTOM + 15.0)
    };
    frame.values.ticks.iter().map(value).chain(frame.steps.ticks.iter().map(step)).collect()
}

/// Marks measurements that are not finite, at the bottom, and those beyond the axis, at its upper or lower end.
fn marks(frame: &ChartFrame, figure: &Figure, series: &Series, color: &str) -> String {
    let mark = |class: &str, step: u64, shape: String, value: String| {
        let x = frame.x(step as f64);
        let tip = format!("step {step}: {} is {value}", series.label);
        format!("<path class='{class}' d='M{x:.1} {shape}'><title>{}</title></path>", escape_html(&tip))
    };
    let broken = series
        .broken
        .iter()
        .map(|&(step, value)| mark("broken", step, format!("{BOTTOM}l-4 -7h8z"), value.to_string()));
    let beyond = series.points.iter().filter_map(|point| {
        let shape = match frame.values.position(point.value) {
            // The drawing extends slightly beyond the last tick.
            position if position > 1.01 => format!("{}l-3 5h6z", TOP - 1.0),
            position if position < -0.01 => format!("{}l-3 -5h6z", BOTTOM + 1.0),
            _ => return None,
        };
        Some(mark(&format!("beyond {color}"), point.step, shape, figure.look.unit.show(point.value)))
    });
    broken.chain(beyond).collect()
}

/// Describes a figure for screen readers.
fn describe(figure: &Figure) -> String {
    let of = |series: &Series| {
        let summary = series.summary(true)?;
        let first = figure.look.unit.show(summary.first);
        let last = figure.look.unit.show(summary.last);
        Some(format!("{} from {first} to {last}", series.label))
    };
    let series: Vec<_> = figure.series.iter().filter_map(of).collect();
    format!("{}: {}", figure.title, series.join("; "))
}
