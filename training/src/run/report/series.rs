//! A number of a run as it goes from step to step: what was measured, and a smooth line through it.

use super::super::Row;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) step: u64,
    pub(super) value: f64,
    /// The smooth line here.
    pub(super) smooth: f64,
    /// Whether a new phase begins with this point: lines are not drawn across.
    pub(super) begins: bool,
}

/// The measurements of one name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) label: String,
    pub(super) points: Vec<Point>,
    /// Measurements that are not finite: steps and what they were.
    pub(super) broken: Vec<(u64, f64)>,
    /// Over about how many points the smooth line runs; 1 if it is the line itself.
    pub(super) span: usize,
}

impl Series {
    /// The measurements called `name` in `rows`. Of several of the same step and phase, the last one counts: what was
    /// done again after a kill.
    pub(super) fn of(label: &str, name: &str, rows: &[&Row]) -> Series {
        let mut broken = Vec::new();
        let mut points: Vec<(Point, &str)> = Vec::new();
        for row in rows {
            let Some(&value) = row.values.get(name) else { continue };
            if !value.is_finite() {
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
        let mut series = Series { label: label.to_owned(), points: points.collect(), broken, span: 1 };
        series.smooth();
        series
    }

    /// Exponential moving average of each phase, divided by the weight it has so far (as Adam, Kingma and Ba 2015,
    /// section 3, corrects its moments), so that it does not begin at zero or stick to the first value.
    fn smooth(&mut self) {
        self.span = self.points.len() / 20;
        if self.span < 2 {
            self.span = 1;
            return;
        }
        let keep = 1.0 - 2.0 / (self.span as f64 + 1.0);
        let (mut sum, mut weight) = (0.0, 0.0);
        for point in &mut self.points {
            if point.begins {
                (sum, weight) = (0.0, 0.0);
            }
            sum = keep * sum + (1.0 - keep) * point.value;
            weight = keep * weight + (1.0 - keep);
            point.smooth = sum / weight;
        }
    }

    /// The lines: the points of each phase by itself.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[Point]> {
        self.points.chunk_by(|_, next| !next.begins)
    }

    /// First, best and last value of the smooth line, from where it has as many points behind it as it needs.
    pub(super) fn summary(&self, larger_is_better: bool) -> Option<Summary> {
        let settled = self.points.get(self.span - 1..)?;
        let (first, last) = (settled.first()?, settled.last()?);
        let better = |a: &&Point, b: &&Point| {
            let order = a.smooth.total_cmp(&b.smooth);
            // Of equals, the earliest.
            if larger_is_better { order.then(b.step.cmp(&a.step)) } else { order.reverse().then(b.step.cmp(&a.step)) }
        };
        let best = settled.iter().max_by(better)?;
        Some(Summary { first: first.smooth, best: best.smooth, best_step: best.step, last: last.smooth })
    }
}

/// What a tile says of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
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
            values.iter().map(|&(step, phase, value)| Row::new(step, phase, 0.0).with("x", value)).collect();
        Series::of("X", "x", &rows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_phase_is_a_line() {
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
        assert_eq!(series.span, 5);
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
}
