//! The page around the figures.

use super::super::Row;
use super::catalogue::Kind;
use super::chart;
use super::escape;
use super::facts::Facts;
use super::figure::{EVALUATIONS, Figure, Section, sections};
use super::number::{duration, whole};
use super::phase::{Phase, phases};
use super::series::Series;
use super::{plot, table, tile};

const STYLE: &str = include_str!("style.css");

/// Makes the page of a run: `name` is that of its folder, `facts` the text of its `run.toml`.
pub(super) fn page(name: &str, facts: &str, rows: &[Row]) -> String {
    let read = Facts::read(facts);
    let title = escape(read.title.as_deref().unwrap_or(name));
    let (sections, phases) = (sections(rows), phases(rows));
    let steps =
        (rows.iter().map(|row| row.step).min().unwrap_or(0), rows.iter().map(|row| row.step).max().unwrap_or(0));
    let mut ids = 0..;
    let body: String = sections
        .iter()
        .map(|section| {
            let card = |figure| card(figure, &phases, steps, ids.next().unwrap_or(0));
            let cards: String = section.figures.iter().map(card).collect();
            let cards = if cards.is_empty() { cards } else { format!("<div class='cards'>{cards}</div>") };
            // The table stands with the curves of the same numbers.
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

fn header(title: &str, name: &str, read: &Facts, rows: &[Row], phases: &[Phase]) -> String {
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
    let fact = |(label, value): &(&str, String)| format!("<div><dt>{label}</dt><dd>{}</dd></div>", escape(value));
    let facts: String = facts.iter().map(fact).collect();
    let nothing = if rows.is_empty() { "<p class='note'>Nothing was measured yet.</p>" } else { "" };
    format!("<header><p class='kind'>Training report</p><h1>{title}</h1><dl>{facts}</dl>{nothing}</header>")
}

/// What is not a number is no small thing in training: it is said first.
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
    format!("<p class='warning'><b>Not finite:</b> {}</p>", escape(&broken.join("; ")))
}

fn card(figure: &Figure, phases: &[Phase], steps: (u64, u64), id: usize) -> String {
    let now = now(figure);
    let several = figure.series.len() > 1 || figure.look.kind == Kind::Mix;
    let legend = if several {
        let item = |(at, (series, now)): (usize, (&Series, &String))| {
            format!("<li><i class='{}'></i>{} <b>{now}</b></li>", plot::colour(at), escape(&series.label))
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
    let note = format!("<span class='note'>{}</span>", escape(&notes.join(", ")));
    format!(
        "<figure><figcaption><h3>{}</h3>{}</figcaption>{}</figure>",
        escape(&figure.title),
        if several { note + &legend } else { legend + &note },
        chart::draw(figure, phases, steps, id)
    )
}

/// What stands beside each name: where its curve ends.
fn now(figure: &Figure) -> Vec<String> {
    let last: Vec<_> = match figure.look.kind {
        Kind::Mix => plot::shares(&figure.series).pop().map_or_else(Vec::new, |shares| shares.parts),
        Kind::Lines => {
            let last = |series: &Series| series.summary(true).map_or(f64::NAN, |summary| summary.last);
            figure.series.iter().map(last).collect()
        }
    };
    let show = |value: f64| escape(&figure.look.unit.show(value)).replace(' ', "&nbsp;");
    last.into_iter().map(show).collect()
}

fn footer(facts: &str, sections: &[Section]) -> String {
    let mut series = sections.iter().flat_map(|section| &section.figures).flat_map(|figure| &figure.series);
    let smooth = if series.any(|series| series.span > 1) {
        "Strong lines, tiles and the numbers beside titles are smoothed (LOWESS over a sixth of a curve, each phase by \
         itself). Faint lines are what was measured; point at a curve to read both. "
    } else {
        ""
    };
    let smooth = format!("<p class='note'>{smooth}All numbers stand in metrics.jsonl.</p>");
    format!(
        "<footer>{smooth}<details><summary>run.toml</summary><pre>{}</pre></details></footer>",
        escape(facts.trim())
    )
}
