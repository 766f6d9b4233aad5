//! Scatter plots with error bars.

use super::svg::{color, document, line, round_up, text};

/// A scatter plot with shares on its vertical axis.
pub(super) struct ScatterPlot<'a> {
    pub(super) title: &'a str,
    /// Name of the horizontal axis.
    pub(super) x: &'a str,
    /// Name of the vertical axis.
    pub(super) y: &'a str,
    pub(super) dots: Vec<Dot>,
}

/// A dot with the standard error of its height.
pub(super) struct Dot {
    pub(super) label: String,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) error: f64,
    /// Group, which decides the color.
    pub(super) group: usize,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 370.0;

impl ScatterPlot<'_> {
    /// Draws the plot.
    pub(super) fn draw(&self) -> String {
        let widest = round_up(self.dots.iter().map(|dot| dot.x).fold(0.0, f64::max));
        let highest = round_up(self.dots.iter().map(|dot| dot.y + dot.error).fold(0.0, f64::max));
        let place = |x: f64, y: f64| (LEFT + x / widest * (RIGHT - LEFT), BOTTOM - y / highest * (BOTTOM - TOP));
        let mut drawn = line((LEFT, TOP), (LEFT, BOTTOM), "#444");
        drawn.push_str(&line((LEFT, BOTTOM), (RIGHT, BOTTOM), "#444"));
        for quarter in 0..=4u8 {
            let share = f64::from(quarter) / 4.0;
            let (x, _) = place(share * widest, 0.0);
            let (_, y) = place(0.0, share * highest);
            drawn.push_str(&text((x, BOTTOM + 16.0), "middle", &format!("{:.0}", share * widest)));
            drawn.push_str(&text((LEFT - 6.0, y + 4.0), "end", &format!("{:.2}", share * highest)));
        }
        drawn.push_str(&text(((LEFT + RIGHT) / 2.0, BOTTOM + 34.0), "middle", self.x));
        drawn.push_str(&text((LEFT, TOP - 6.0), "middle", self.y));
        for dot in &self.dots {
            let (x, y) = place(dot.x, dot.y);
            let color = color(dot.group);
            let (_, low) = place(dot.x, (dot.y - dot.error).max(0.0));
            let (_, high) = place(dot.x, dot.y + dot.error);
            drawn.push_str(&line((x, low), (x, high), color));
            drawn.push_str(&format!("<circle cx='{x:.1}' cy='{y:.1}' r='4' fill='{color}'/>\n"));
            drawn.push_str(&text((x + 7.0, y + 4.0), "start", &dot.label));
        }
        document(self.title, (WIDTH, HEIGHT), &drawn)
    }
}
