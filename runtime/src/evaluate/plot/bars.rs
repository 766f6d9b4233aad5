//! Charts of horizontal stacked bars.

use super::svg::{color, document, line, round_up, text};

/// A chart of stacked bars.
pub(super) struct BarChart<'a> {
    pub(super) title: &'a str,
    /// End of the axis. `None` takes a round number beyond the longest bar.
    pub(super) end: Option<f64>,
    /// Names of the parts.
    pub(super) parts: &'a [&'a str],
    pub(super) bars: Vec<Bar>,
}

/// A bar.
pub(super) struct Bar {
    pub(super) label: String,
    /// Lengths of its parts.
    pub(super) parts: Vec<f64>,
}

const LEFT: f64 = 260.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 58.0;
const ROW: f64 = 24.0;
const THICKNESS: f64 = 16.0;

impl BarChart<'_> {
    /// Draws the chart.
    pub(super) fn draw(&self) -> String {
        let longest = self.bars.iter().map(|bar| bar.parts.iter().sum::<f64>()).fold(0.0, f64::max);
        let end = self.end.unwrap_or_else(|| round_up(longest));
        let bottom = TOP + ROW * self.bars.len() as f64;
        let mut drawn = self.legend();
        for (place, bar) in self.bars.iter().enumerate() {
            drawn.push_str(&draw_bar(bar, TOP + ROW * place as f64, end));
        }
        drawn.push_str(&line((LEFT, TOP - 4.0), (LEFT, bottom), "#444"));
        for quarter in 0..=4u8 {
            let share = f64::from(quarter) / 4.0;
            let x = LEFT + share * (RIGHT - LEFT);
            drawn.push_str(&text((x, bottom + 16.0), "middle", &format!("{:.2}", share * end)));
        }
        document(self.title, (RIGHT + 30.0, bottom + 26.0), &drawn)
    }

    /// Draws the names of the parts that some bar has.
    fn legend(&self) -> String {
        let used = |place: &usize| self.bars.iter().any(|bar| bar.parts.get(*place).is_some_and(|part| *part > 0.0));
        let mut drawn = String::new();
        for (column, place) in (0..self.parts.len()).filter(used).enumerate() {
            let x = LEFT + 80.0 * column as f64;
            drawn.push_str(&format!("<rect x='{x}' y='32' width='10' height='10' fill='{}'/>\n", color(place)));
            drawn.push_str(&text((x + 14.0, 41.0), "start", self.parts[place]));
        }
        drawn
    }
}

fn draw_bar(bar: &Bar, y: f64, end: f64) -> String {
    let mut drawn = text((LEFT - 8.0, y + THICKNESS - 3.0), "end", &bar.label);
    let mut x = LEFT;
    for (place, part) in bar.parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
        let width = part / end * (RIGHT - LEFT);
        drawn.push_str(&format!(
            "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{THICKNESS}' fill='{}' data-share='{part:.3}'/>\n",
            color(place)
        ));
        x += width;
    }
    drawn
}
