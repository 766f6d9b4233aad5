//! The numbers that count, in a row of tiles: first, best, last.

use super::escape;
use super::figure::{EVALUATIONS, Section};
use super::number::Unit;

/// Which of them, and which way is better, if one is.
const TILES: &[(&str, &str, Option<bool>)] = &[
    ("Reward", "reward", Some(true)),
    ("Exact match", "EM", Some(true)),
    ("F1", "F1", Some(true)),
    ("Form", "valid form", Some(true)),
    ("Loss", "training", Some(false)),
    ("Loss", "validation", Some(false)),
    ("Searches", "searches", None),
    ("Retrieval cost", "cost", Some(false)),
    ("KL to the reference", "KL", None),
    ("Throughput", "update", None),
];

/// Numbers that do not count as much as the first ones are left out beyond this many tiles.
const MOST: usize = 8;

/// The tiles of those numbers that the run has. Numbers of an evaluation are in its table.
pub(super) fn tiles(sections: &[Section]) -> String {
    let training = || sections.iter().filter(|section| section.heading != EVALUATIONS);
    let tile = |&(title, label, better): &(&str, &str, Option<bool>)| {
        let figure = training().flat_map(|section| &section.figures).find(|figure| figure.title == title)?;
        let series = figure.series.iter().find(|series| series.label == label)?;
        let summary = series.summary(better.unwrap_or(true))?;
        let name = if figure.series.len() > 1 { format!("{title}, {label}") } else { title.to_owned() };
        let best = match better {
            Some(_) => {
                format!(
                    "<span>best {} <i>at step {}</i></span>",
                    show(figure.look.unit, summary.best),
                    summary.best_step
                )
            }
            None => String::new(),
        };
        Some(format!(
            "<div class='tile'><h3>{}</h3><p class='last'>{}</p><p class='way'><span>first {}</span>{best}</p></div>",
            escape(&name),
            show(figure.look.unit, summary.last),
            show(figure.look.unit, summary.first),
        ))
    };
    let tiles: String = TILES.iter().filter_map(tile).take(MOST).collect();
    if tiles.is_empty() { tiles } else { format!("<div class='tiles'>{tiles}</div>") }
}

fn show(unit: Unit, value: f64) -> String {
    escape(&unit.show(value)).replace(' ', "&nbsp;")
}
