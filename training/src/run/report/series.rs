//! Series of a metric over steps: measurements and a smoothed line.

use super::super::MetricsRow;

/// Largest value to draw; squares and sums of such values stay finite.
const LARGEST: f64 = 1e100;

/// Measurement at a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) step: u64,
    pub(super) value: f64,
    /// Value of the smoothed line.
    pub(super) smooth: f64,
    /// If `true`, a new phase begins here, and no line is drawn from the previous point.
    pub(super) begins: bool,
}

/// Measurements of one metric.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) label: String,
    pub(super) points: Vec<Point>,
    /// Steps and values that cannot be drawn, because the values are not finite or too large.
    pub(super) broken: Vec<(u64, f64)>,
    /// Window of the smoothed line, in points. 1 without smoothing.
    pub(super) span: usize,
}

impl Series {
    /// Collects the values of `name` in `rows`. If a step has several values in one phase, the last one counts: it was
    /// measured again after a kill.
    pub(super) fn of(label: &str, name: &str, rows: &[&MetricsRow]) -> Series {
        let mut broken = Vec::new();
        let mut points: Vec<(Point, &str)> = Vec::new();
        for row in rows {
            let Some(&value) = row.values.get(name) else { continue };
            if !value.is_finite() || value.abs() > LARGEST {
                broken.push((row.step, value));
                continue;
            }
            let point = Point { step: row.step, value, smooth: value, begins: false };
            match points.last_mut() {
                Some((last, phase)) if last.step == row.step && *phase == row.phase => *last = point,
                _ => points.push((point, &row.phase)),
            }
        }
        let mut before = None;
        let points = points.into_iter().map(|(point, phase)| {
            let begins = before.replace(phase) != Some(phase);
            Point { begins, ..point }
        });
        Series { label: label.to_owned(), points: points.collect(), broken, span: 1 }
    }

    /// Computes the smoothed line by LOWESS without its robust second pass (Cleveland 1979): at each point, a line is
    /// fitted to the points of its phase around it, weighted by proximity. Unlike a moving average, it neither lags
    /// behind a steep curve nor bends at its ends. If a phase has more than [`MOST`] points, LOWESS runs over means
    /// of neighbors and interpolates between them, because its time would grow with the square of the number of
    /// points.
    pub(super) fn smoothed(mut self) -> Series {
        let reach = self.points.len() / 12;
        if reach < 2 {
            return self;
        }
        self.span = 2 * reach + 1;
        for line in self.points.chunk_by_mut(|_, next| !next.begins) {
            // LOWESS is quadratic in the number of points, so long lines are fitted on means.
            let stride = line.len().div_ceil(MOST);
            let mean = |points: &[Point]| points.iter().map(|point| point.value).sum::<f64>() / points.len() as f64;
            let values: Vec<f64> = line.chunks(stride).map(mean).collect();
            let reach = (reach / stride).max(2);
            let smooth: Vec<f64> = (0..values.len()).map(|at| fit(&values, at, reach)).collect();
            for (at, point) in line.iter_mut().enumerate() {
                point.smooth = between(&smooth, (at as f64 + 0.5) / stride as f64 - 0.5);
            }
        }
        self
    }

    /// Splits the points by phase.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[Point]> {
        self.points.chunk_by(|_, next| !next.begins)
    }

    /// Returns the first, best and last value of the smoothed line.
    pub(super) fn summary(&self, larger_is_better: bool) -> Option<SeriesSummary> {
        let better = |a: &&Point, b: &&Point| {
            let order = a.smooth.total_cmp(&b.smooth);
            let order = if larger_is_better { order } else { order.reverse() };
            // Ties go to the earliest step.
            order.then(b.step.cmp(&a.step))
        };
        let best = self.points.iter().max_by(better)?;
        let first = self.points.first()?.smooth;
        let last = self.points.last()?.smooth;
        Some(SeriesSummary { first, best: best.smooth, best_step: best.step, last })
    }
}

/// Maximum number of points for fitting each point by itself.
const MOST: usize = 500;

/// Interpolates `values` linearly at the fractional index `place`, constant beyond both ends.
fn between(values: &[f64], place: f64) -> f64 {
    let place = place.clamp(0.0, (values.len() - 1) as f64);
    let low = place.floor() as usize;
    let part = place.fract();
    // At a whole index the fitted value must come back bit for bit.
    if part == 0.0 { values[low] } else { values[low] * (1.0 - part) + values[low + 1] * part }
}

/// Fits a weighted least-squares line around index `at` and returns its value there. The window has up to `reach`
/// points on each side; near an end of the line it extends further to the other side.
fn fit(line: &[f64], at: usize, reach: usize) -> f64 {
    let count = line.len().min(2 * reach + 1);
    let from = at.saturating_sub(reach).min(line.len() - count);
    let near = &line[from..from + count];
    let width = (at - from).max(from + count - 1 - at) + 1;
    // Sums of weight, weight × distance, weight × distance², weight × value and weight × distance × value.
    let mut w = 0.0;
    let mut wx = 0.0;
    let mut wxx = 0.0;
    let mut wy = 0.0;
    let mut wxy = 0.0;
    for (place, value) in near.iter().enumerate() {
        let x = (from + place) as f64 - at as f64;
        // Tricube weights as in Cleveland 1979.
        let tricube = (1.0 - (x.abs() / width as f64).powi(3)).powi(3);
        w += tricube;
        wx += tricube * x;
        wxx += tricube * x * x;
        wy += tricube * value;
        wxy += tricube * x * value;
    }
    let spread = w * wxx - wx * wx;
    let fitted = if spread > 0.0 { (wxx * wy - wx * wxy) / spread } else { wy / w };
    // The fit must not leave the range of the measurements: a share cannot exceed 1.
    let low = near.iter().copied().fold(f64::INFINITY, f64::min);
    let high = near.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Sums of values near the limit of `f64` overflow.
    if fitted.is_finite() { fitted.max(low).min(high) } else { line[at] }
}

/// Summary of a series for a tile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SeriesSummary {
    pub(super) first: f64,
    pub(super) best: f64,
    pub(super) best_step: u64,
    pub(super) last: f64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn series(values: &[(u64, &str, f64)]) -> Series {
        let rows: Vec<_> =
            values.iter().map(|&(step, phase, value)| MetricsRow::new(step, phase, 0.0).with("x", value)).collect();
        Series::of("X", "x", &rows.iter().collect::<Vec<_>>()).smoothed()
    }

    #[test]
    fn phases_are_separate_lines() {
        let series =
            series(&[(1, "a", 1.0), (2, "a", 2.0), (2, "a", 3.0), (3, "b", f64::NAN), (4, "b", 5.0), (5, "b", 6.0)]);
        let lines: Vec<Vec<_>> = series.lines().map(|line| line.iter().map(|p| (p.step, p.value)).collect()).collect();
        assert_eq!(lines, [vec![(1, 1.0), (2, 3.0)], vec![(4, 5.0), (5, 6.0)]]);
        assert_eq!(series.broken.len(), 1);
        assert_eq!(series.broken[0].0, 3);
    }

    #[test]
    fn the_smooth_line_of_a_constant_is_the_constant() {
        let values: Vec<_> = (1..=100)
            .map(|step| (step, if step <= 50 { "a" } else { "b" }, if step <= 50 { 4.0 } else { 8.0 }))
            .collect();
        let series = series(&values);
        assert_eq!(series.span, 17);
        for point in &series.points {
            assert!((point.smooth - point.value).abs() < 1e-9, "{point:?}");
        }
    }

    #[test]
    fn the_smooth_line_is_less_rough_and_the_summary_is_of_it() {
        let values: Vec<_> = (1..=200u64)
            .map(|step| (step, "a", step as f64 / 100.0 + if step % 2 == 0 { 1.0 } else { -1.0 }))
            .collect();
        let series = series(&values);
        let rough = |value: fn(&Point) -> f64| {
            series.points.windows(2).map(|w| (value(&w[1]) - value(&w[0])).abs()).sum::<f64>()
        };
        assert!(rough(|p| p.smooth) < rough(|p| p.value) / 4.0);
        let summary = series.summary(true).unwrap();
        assert!(summary.first.abs() < 0.3, "{summary:?}");
        assert!(summary.best >= summary.last && summary.best < 2.5, "{summary:?}");
        assert!(series.summary(false).unwrap().best < summary.best);
    }

    #[test]
    fn smoothing_neither_lags_nor_leaves_the_range() {
        let line: Vec<_> = (1..=60).map(|step| (step, "a", 3.0 * step as f64)).collect();
        for point in series(&line).points {
            assert!((point.smooth - point.value).abs() < 1e-9, "{point:?}");
        }
        let share: Vec<_> =
            (1..=60).map(|step| (step, "a", if step % 7 < 5 && step < 55 { 0.9 } else { 1.0 })).collect();
        assert!(series(&share).points.iter().all(|point| (0.9..=1.0).contains(&point.smooth)));
    }

    #[test]
    fn long_lines_are_smoothed_in_bounded_time() {
        let values: Vec<_> = (1..=20_011u64).map(|step| (step, "a", step as f64 + 50.0 * (step % 2) as f64)).collect();
        let series = series(&values);
        assert_eq!(series.points.len(), values.len());
        for point in &series.points[100..19_900] {
            assert!((point.smooth - point.step as f64 - 25.0).abs() < 2.0, "{point:?}");
        }
    }
}
