//! The evaluations of a run, as a table.

use std::collections::BTreeMap;

use super::super::Row;
use super::escape;
use super::figure::{is_evaluation, split};
use super::number::{Unit, whole};

/// Columns that come first, with their heads; others follow by name.
const COLUMNS: &[(&str, &str, Unit)] = &[
    ("em", "EM", Unit::Share),
    ("f1", "F1", Unit::Share),
    ("answered", "answered", Unit::Share),
    ("format_valid", "valid form", Unit::Share),
    ("turns", "turns", Unit::Plain),
    ("searches_passage", "passage", Unit::Plain),
    ("searches_graph", "graph", Unit::Plain),
    ("searches_hybrid", "hybrid", Unit::Plain),
    ("searches_triples", "triples", Unit::Plain),
    ("searches_kag", "KAG", Unit::Plain),
    ("retrieval_cost", "retrieval cost", Unit::Plain),
];

/// Numbers of a set at a step, by metric.
type Line<'a> = BTreeMap<&'a str, f64>;

/// A line for every question set at every step at which it was measured; the best EM of a set stands out. Empty if
/// nothing was measured.
pub(super) fn table(rows: &[Row]) -> String {
    let mut lines: BTreeMap<(&str, u64), Line<'_>> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_evaluation(row)) {
        for (name, &value) in &row.values {
            let (set, metric) = split(name);
            // The loss on what is held out is drawn beside that of training.
            if !metric.starts_with("validation_") {
                lines.entry((set, row.step)).or_default().insert(metric, value);
            }
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let columns = columns(&lines);
    let heads: String = columns.iter().map(|(_, head, _)| format!("<th>{}</th>", escape(head))).collect();
    let mut before = None;
    let body: String = lines
        .iter()
        .map(|(&(set, step), line)| {
            let again = before.replace(set) == Some(set);
            let class = if again { "" } else { " class='first'" };
            let best = lines
                .range((set, 0)..=(set, u64::MAX))
                .filter_map(|(_, line)| line.get("em"))
                .copied()
                .fold(0.0, f64::max);
            let cell = |&(metric, _, unit): &(&str, &str, Unit)| match line.get(metric) {
                Some(&value) if metric == "em" && value == best => format!("<td><b>{}</b></td>", unit.cell(value)),
                Some(&value) => format!("<td>{}</td>", unit.cell(value)),
                None => "<td></td>".to_owned(),
            };
            let cells: String = columns.iter().map(cell).collect();
            let set = if again { "" } else { set };
            format!("<tr{class}><th>{}</th><td>{}</td>{cells}</tr>", escape(set), whole(step))
        })
        .collect();
    format!(
        "<div class='wide'><table><thead><tr><th>questions of</th><th>step</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )
}

fn columns<'a>(lines: &BTreeMap<(&'a str, u64), Line<'a>>) -> Vec<(&'a str, &'a str, Unit)> {
    let there: BTreeMap<&'a str, ()> =
        lines.values().flat_map(|line| line.keys().map(|&metric| (metric, ()))).collect();
    let first = COLUMNS.iter().copied().filter(|(metric, ..)| there.contains_key(metric));
    let known = |metric: &str| COLUMNS.iter().any(|(known, ..)| *known == metric);
    let others = there.keys().filter(|metric| !known(metric)).map(|&metric| (metric, metric, Unit::Plain));
    first.chain(others).collect()
}
