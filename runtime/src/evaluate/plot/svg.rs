//! Pieces of SVG documents.

use crate::escape_html;

/// Colors of parts and groups, distinct also for color-blind readers (Okabe and Ito 2008).
const COLORS: &[&str] = &["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Returns the color of a part or group.
pub(super) fn color(place: usize) -> &'static str {
    COLORS[place % COLORS.len()]
}

/// Wraps the content of a document with a title.
pub(super) fn document(title: &str, (width, height): (f64, f64), content: &str) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' \
         font-family='sans-serif' font-size='12' role='img'>\n<title>{0}</title>\n<rect width='100%' height='100%' \
         fill='#fff'/>\n{1}{content}</svg>\n",
        escape_html(title),
        text((10.0, 20.0), "start", title),
    )
}

/// Draws a text at a place; `anchor` is `start`, `middle` or `end`.
pub(super) fn text((x, y): (f64, f64), anchor: &str, content: &str) -> String {
    format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>\n", escape_html(content))
}

/// Draws a line.
pub(super) fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str) -> String {
    format!("<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' stroke='{color}'/>\n")
}

/// Returns a round number not below `value`, for the end of an axis.
pub(super) fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let unit = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.into_iter().map(|step| step * unit).find(|end| *end >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::round_up;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, end) in [(0.0, 1.0), (0.31, 0.5), (1.0, 1.0), (2.3, 2.5), (870.0, 1000.0), (f64::NAN, 1.0)] {
            assert!((round_up(value) - end).abs() < 1e-9, "{value}");
        }
    }
}
