//! The numbers that count, in tiles: first, best, last.

use super::escape;
use super::figure::{EVALUATIONS, Section};
use super::number::{Unit, whole};
use super::series::Series;

/// A number of a tile: its name there, the figure and the label of its curve, and which way is better, if one is.
type Tile = (&'static str, &'static str, &'static str, Option<bool>);

const TILES: &[Tile] = &[
    ("Reward", "Reward", "reward", Some(true)),
    ("Exact match", "Exact match", "EM", Some(true)),
    ("F1", "F1", "F1", Some(true)),
    ("Valid form", "Form", "valid form", Some(true)),
    ("Validation loss", "Loss", "validation", Some(false)),
    (LOSS, "Loss", "training", Some(false)),
    ("Retrieval cost", "Retrieval cost", "cost", Some(false)),
    ("Searches", "Searches", "searches", None),
    ("KL to the reference", "KL to the reference", "KL", None),
    ("Update, tokens per second", "Throughput", "update", None),
];

/// The loss of a policy update hovers about zero whatever is learnt: where there is a reward, it says nothing.
const LOSS: &str = "Loss";

/// The last ones are left out beyond this many tiles.
const MOST: usize = 8;

/// The tiles of those numbers that the run has. Numbers of an evaluation are in its table.
pub(super) fn tiles(sections: &[Section]) -> String {
    let find = |title: &str, label: &str| {
        let training = sections.iter().filter(|section| section.heading != EVALUATIONS);
        let figure = training.flat_map(|section| &section.figures).find(|figure| figure.title == title)?;
        Some((figure.look.unit, figure.series.iter().find(|series| series.label == label)?))
    };
    let rewarded = find("Reward", "reward").is_some();
    let tiles = TILES.iter().filter(|(name, ..)| !(rewarded && *name == LOSS));
    let tiles = tiles.filter_map(|&(name, title, label, better)| {
        let (unit, series) = find(title, label)?;
        tile(name, unit, series, better)
    });
    let tiles: Vec<_> = tiles.take(MOST).collect();
    match tiles.len() {
        0 => String::new(),
        count => format!("<div class='tiles{}'>{}</div>", if count > 5 { " many" } else { "" }, tiles.concat()),
    }
}

fn tile(name: &str, unit: Unit, series: &Series, better: Option<bool>) -> Option<String> {
    let summary = series.summary(better.unwrap_or(true))?;
    let show = |value| escape(&unit.show(value)).replace(' ', "&nbsp;");
    let best = match better {
        Some(_) => format!("<span>best {} <i>at step {}</i></span>", show(summary.best), whole(summary.best_step)),
        None => String::new(),
    };
    let (name, first, last) = (escape(name), show(summary.first), show(summary.last));
    Some(format!(
        "<div class='tile'><h3>{name}</h3><p class='last'>{last}</p><p class='way'><span>first {first}</span>{best}</p></div>"
    ))
}
