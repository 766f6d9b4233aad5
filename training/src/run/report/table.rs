//! Table of a run's evaluations.

use std::collections::BTreeMap;

use waymark_runtime::escape_html;

use super::super::MetricsRow;
use super::figure::{is_evaluation, split};
use super::number::{NumberUnit, whole};

/// Metrics of the first columns, with their headings. Other metrics follow by name.
const COLUMNS: &[(&str, &str, NumberUnit)] = &[
    ("em", "EM", NumberUnit::Share),
    ("f1", "F1", NumberUnit::Share),
    ("answered", "answered", NumberUnit::Share),
    ("format_valid", "valid form", NumberUnit::Share),
    ("turns", "turns", NumberUnit::Plain),
    ("searches_passage", "passage", NumberUnit::Plain),
    ("searches_graph", "graph", NumberUnit::Plain),
    ("searches_hybrid", "hybrid", NumberUnit::Plain),
    ("searches_triples", "triples", NumberUnit::Plain),
    ("searches_kag", "KAG", NumberUnit::Plain),
    ("searches_hypergraph", "hypergraph", NumberUnit::Plain),
    ("retrieval_cost", "retrieval cost", NumberUnit::Plain),
];

/// Values of a question set at a step, by metric.
type TableLine<'a> = BTreeMap<&'a str, f64>;

/// Builds a table with one line per question set and measured step; the best EM of each set is bold. Empty if there
/// are no evaluations.
pub(super) fn table(rows: &[MetricsRow]) -> String {
    let mut lines: BTreeMap<(&str, u64), TableLine<'_>> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_evaluation(row)) {
        for (name, &value) in &row.values {
            let (set, metric) = split(name);
            // Validation losses are drawn with the training loss instead.
            if !metric.starts_with("validation_") {
                lines.entry((set, row.step)).or_default().insert(metric, value);
            }
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let columns = columns(&lines);
    let heads: String = columns.iter().map(|(_, head, _)| format!("<th>{}</th>", escape_html(head))).collect();
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
            let cell = |&(metric, _, unit): &(&str, &str, NumberUnit)| match line.get(metric) {
                Some(&value) if metric == "em" && value == best => format!("<td><b>{}</b></td>", unit.cell(value)),
                Some(&value) => format!("<td>{}</td>", unit.cell(value)),
                None => "<td></td>".to_owned(),
            };
            let cells: String = columns.iter().map(cell).collect();
            let set = if again { "" } else { set };
            format!("<tr{class}><th>{}</th><td>{}</td>{cells}</tr>", escape_html(set), whole(step))
        })
        .collect();
    format!(
        "<div class='wide'><table><thead><tr><th>questions of</th><th>step</th>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )
}

fn columns<'a>(lines: &BTreeMap<(&'a str, u64), TableLine<'a>>) -> Vec<(&'a str, &'a str, NumberUnit)> {
    let there: BTreeMap<&'a str, ()> =
        lines.values().flat_map(|line| line.keys().map(|&metric| (metric, ()))).collect();
    let first = COLUMNS.iter().copied().filter(|(metric, ..)| there.contains_key(metric));
    let known = |metric: &str| COLUMNS.iter().any(|(known, ..)| *known == metric);
    let others = there.keys().filter(|metric| !known(metric)).map(|&metric| (metric, metric, NumberUnit::Plain));
    first.chain(others).collect()
}
