//! Blocks as a self-contained page, without scripts.

use waymark_runtime::escape_html;

use super::block::{Block, Grid, Whisker};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
table{border-collapse:collapse;margin:1rem 0;font-size:13px;display:block;overflow-x:auto}\
th,td{padding:.25rem .6rem;border-bottom:1px solid #8884;text-align:left;white-space:nowrap}\
svg{max-width:100%;height:auto}.yes{fill:#0a7d4b}.no{fill:#b3261e}text{fill:currentColor;font-size:12px}\
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}.yes{fill:#4cc38a}.no{fill:#ff8a80}}";

/// Renders a page.
pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    let body: String = blocks.iter().map(block).collect();
    format!(
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' \
         content='width=device-width, initial-scale=1'><meta name='color-scheme' content='light dark'>\
         <title>{} · experiment</title><style>{STYLE}</style></head><body>\n{body}</body></html>\n",
        escape_html(title)
    )
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(level, text) => format!("<h{level}>{}</h{level}>\n", escape_html(text)),
        Block::Text(text) => format!("<p>{}</p>\n", escape_html(text)),
        Block::Grid(grid) => table(grid),
        Block::Forest(whiskers) => forest(whiskers),
    }
}

fn table(grid: &Grid) -> String {
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape_html(cell))).collect()
    };
    let rows: String = grid.rows.iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
    format!("<table><tr>{}</tr>\n{rows}</table>\n", cells("th", &grid.head))
}

/// Draws intervals, each on its own scale from the least to the greatest of its values and 0. A vertical line marks the
/// bar.
fn forest(whiskers: &[Whisker]) -> String {
    const ROW: f64 = 26.0;
    const LEFT: f64 = 330.0;
    const WIDTH: f64 = 360.0;
    let height = ROW * whiskers.len() as f64 + 8.0;
    let draw = |(place, whisker): (usize, &Whisker)| {
        let y = ROW * place as f64 + ROW / 2.0;
        let ends = [whisker.low, whisker.high, whisker.value, whisker.bar, 0.0];
        let low = ends.into_iter().fold(f64::INFINITY, f64::min);
        let high = ends.into_iter().fold(f64::NEG_INFINITY, f64::max);
        // If all values are 0, so is their span, which must not be a divisor.
        let span = if high > low { high - low } else { 1.0 };
        let x = |value: f64| LEFT + (value - low) / span * WIDTH;
        let class = if whisker.passed { "yes" } else { "no" };
        format!(
            "<text x='{:.0}' y='{:.1}' text-anchor='end'>{}</text>\
             <rect class='{class}' x='{:.1}' y='{:.1}' width='{:.1}' height='2'/>\
             <circle class='{class}' cx='{:.1}' cy='{y:.1}' r='4'/>\
             <rect x='{:.1}' y='{:.1}' width='1' height='18' fill='currentColor'/>\n",
            LEFT - 12.0,
            y + 4.0,
            escape_html(&whisker.label),
            x(whisker.low),
            y - 1.0,
            x(whisker.high) - x(whisker.low),
            x(whisker.value),
            x(whisker.bar),
            y - 9.0,
        )
    };
    let drawn: String = whiskers.iter().enumerate().map(draw).collect();
    format!("<svg viewBox='0 0 {} {height}' role='img' aria-label='differences'>\n{drawn}</svg>\n", LEFT + WIDTH + 20.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let whisker = Whisker { label: "<a>".into(), low: 0.0, value: 0.0, high: 0.0, bar: 0.0, passed: true };
        let page = page("<t>", &[Block::Text("a & <b>".into()), Block::Forest(vec![whisker])]);
        assert!(page.contains("a &amp; &lt;b&gt;") && !page.contains("<a>") && !page.contains("<t>"));
        assert!(!page.contains("NaN"), "{page}");
    }
}
