//! HTML page around the figures.

use waymark_runtime::escape_html;

use super::super::MetricsRow;
use super::chart;
use super::facts::ReportFacts;
use super::figure::{EVALUATIONS, Figure, Section, sections};
use super::number::{duration, whole};
use super::phase::{RunPhase, phases};
use super::series::Series;
use super::{plot, table, tile};

const STYLE: &str = include_str!("style.css");

/// Builds the page of a run. `name` is the name of its directory, `facts` the text of its `run.toml`.
pub(super) fn page(name: &str, facts: &str, rows: &[MetricsRow]) -> String {
    let read = ReportFacts::read(facts);
    let title = escape_html(read.title.as_deref().unwrap_or(name));
    let sections = sections(rows);
    let phases = phases(rows);
    let steps =
        (rows.iter().map(|row| row.step).min().unwrap_or(0), rows.iter().map(|row| row.step).max().unwrap_or(0));
    // Each chart defines a clip path by ID, which must be unique on the page.
    let mut ids = 0..;
    let body: String = sections
        .iter()
        .map(|section| {
            let card = |figure| card(figure, &phases, steps, ids.next().unwrap_or(0));
            let cards: String = section.figures.iter().map(card).collect();
            let cards = if cards.is_empty() { cards } else { format!("<div class='cards'>{cards}</div>") };
            // The table of evaluations belongs to the curves of the same metrics.
            let table = if section.heading == EVALUATIONS { table::table(rows) } else { String::new() };
            if cards.is_empty() && table.is_empty() {
                return String::new();
            }
            format!("<section><h2>{}</h2>{cards}{table}</section>", section.heading)
        })
        .collect();
    format!(
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\
         <meta name='viewport' content='width=device-width, initial-scale=1'><meta name='color-scheme' content='light dark'>\
         <title>{title} · training report</title><style>{STYLE}</style></head><body><main>\
         {}{}{}{body}{}</main></body></html>\n",
        header(&title, name, &read, rows, &phases),
        warning(&sections),
        tile::tiles(&sections),
        footer(facts, &sections),
    )
}

fn header(title: &str, name: &str, read: &ReportFacts, rows: &[MetricsRow], phases: &[RunPhase]) -> String {
    let mut facts: Vec<_> = read.facts.iter().map(|(label, value)| (*label, value.clone())).collect();
    if read.title.is_some() {
        facts.insert(0, ("run", name.to_owned()));
    }
    let names: Vec<_> =
        phases.iter().map(|phase| format!("{} {}–{}", phase.name, whole(phase.from), whole(phase.to))).collect();
    if !names.is_empty() {
        facts.push(("steps", names.join(", ")));
    }
    if let Some(last) = rows.last() {
        facts.push(("time", duration(last.seconds)));
    }
    let fact = |(label, value): &(&str, String)| format!("<div><dt>{label}</dt><dd>{}</dd></div>", escape_html(value));
    let facts: String = facts.iter().map(fact).collect();
    let nothing = if rows.is_empty() { "<p class='note'>No metrics yet.</p>" } else { "" };
    format!("<header><p class='kind'>Training report</p><h1>{title}</h1><dl>{facts}</dl>{nothing}</header>")
}

/// Builds a warning that lists metrics with non-finite or too large values. The warning stands above all figures,
/// because such values usually mean that training diverged.
fn warning(sections: &[Section]) -> String {
    let series = sections
        .iter()
        .flat_map(|section| &section.figures)
        .flat_map(|figure| figure.series.iter().map(move |series| (figure, series)));
    let broken: Vec<_> = series
        .filter_map(|(figure, series)| {
            let (step, value) = series.broken.first()?;
            let times = series.broken.len();
            Some(format!("{} ({}): {times} ×, first {value} at step {}", figure.title, series.label, whole(*step)))
        })
        .collect();
    if broken.is_empty() {
        return String::new();
    }
    format!("<p class='warning'><b>Not finite:</b> {}</p>", escape_html(&broken.join("; ")))
}

fn card(figure: &Figure, phases: &[RunPhase], steps: (u64, u64), id: usize) -> String {
    let now = now(figure);
    let several = figure.series.len() > 1;
    let legend = if several {
        let item = |(at, (series, now)): (usize, (&Series, &String))| {
            format!("<li><i class='{}'></i>{} <b>{now}</b></li>", plot::color(at), escape_html(&series.label))
        };
        let items: String = figure.series.iter().zip(&now).enumerate().map(item).collect();
        format!("<ul>{items}</ul>")
    } else {
        format!("<span class='now'>{}</span>", now.concat())
    };
    let mut notes = vec![figure.look.note];
    if figure.legend && !several {
        notes.extend(figure.series.iter().map(|series| series.label.as_str()));
    }
    notes.retain(|note| !note.is_empty());
    let note = format!("<span class='note'>{}</span>", escape_html(&notes.join(", ")));
    format!(
        "<figure><figcaption><h3>{}</h3>{}</figcaption>{}</figure>",
        escape_html(&figure.title),
        if several { note + &legend } else { legend + &note },
        chart::draw(figure, phases, steps, id)
    )
}

/// Returns the last value of each curve, shown next to its name.
fn now(figure: &Figure) -> Vec<String> {
    let last = |series: &Series| series.summary(true).map_or(f64::NAN, |summary| summary.last);
    // An unbroken space keeps a number and its unit on one line.
    let show = |value: f64| escape_html(&figure.look.unit.show(value)).replace(' ', "&nbsp;");
    figure.series.iter().map(last).map(show).collect()
}

fn footer(facts: &str, sections: &[Section]) -> String {
    let mut series = sections.iter().flat_map(|section| &section.figures).flat_map(|figure| &figure.series);
    let smooth = if series.any(|series| series.span > 1) {
        "Bold lines, tiles and the numbers next to titles are smoothed (LOWESS over a sixth of a curve, separately for each \
         phase). Faint lines are measurements; point at a curve to read both. "
    } else {
        ""
    };
    let smooth = format!("<p class='note'>{smooth}All numbers are in metrics.jsonl.</p>");
    format!(
        "<footer>{smooth}<details><summary>run.toml</summary><pre>{}</pre></details></footer>",
        escape_html(facts.trim())
    )
}
