//! Tiles: first, best and last value of the key metrics.

use waymark_runtime::escape_html;

use super::figure::{EVALUATIONS, Section};
use super::number::{NumberUnit, whole};
use super::series::Series;

/// Name of a tile, title of its figure, label of its curve, and the better direction: `Some(true)` if larger is
/// better, `None` if neither is.
type TileSpec = (&'static str, &'static str, &'static str, Option<bool>);

const TILES: &[TileSpec] = &[
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

/// Tile that is left out if there is a reward: the loss of a policy update stays around zero whatever the policy
/// learns.
const LOSS: &str = "Loss";

/// Maximum number of tiles.
const MOST: usize = 8;

/// Builds the tiles of the metrics that the run has. Evaluation metrics are in the table instead.
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

fn tile(name: &str, unit: NumberUnit, series: &Series, better: Option<bool>) -> Option<String> {
    let summary = series.summary(better.unwrap_or(true))?;
    let show = |value| escape_html(&unit.show(value)).replace(' ', "&nbsp;");
    let best = match better {
        Some(_) => format!("<span>best {} <i>at step {}</i></span>", show(summary.best), whole(summary.best_step)),
        None => String::new(),
    };
    let name = escape_html(name);
    let first = show(summary.first);
    let last = show(summary.last);
    Some(format!(
        "<div class='tile'><h3>{name}</h3><p class='last'>{last}</p><p class='way'><span>first {first}</span>{best}</p></div>"
    ))
}
