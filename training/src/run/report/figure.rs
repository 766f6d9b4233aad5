//! Selection of the metrics for each figure.

use std::collections::{BTreeMap, BTreeSet};

use super::super::MetricsRow;
use super::catalog::{ANSWERS, EVALUATION, KnownFigure, LEARNING, Look, SEARCHING, SPEED};
use super::series::Series;

/// Figure with its series.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) look: Look,
    /// If `true`, the title alone does not name the curves.
    pub(super) legend: bool,
    pub(super) series: Vec<Series>,
}

/// Figures under one heading.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) heading: &'static str,
    pub(super) figures: Vec<Figure>,
}

/// Heading of evaluation metrics.
pub(super) const EVALUATIONS: &str = "Evaluation";

/// Returns `true` for rows of evaluations, as opposed to training.
pub(super) fn is_evaluation(row: &MetricsRow) -> bool {
    row.phase.starts_with("eval")
}

/// Sorts the metrics of a run into figures. Every training metric appears in one: metrics without a known figure get
/// one each, at the end. The section of evaluations is always present.
pub(super) fn sections(rows: &[MetricsRow]) -> Vec<Section> {
    let training: Vec<_> = rows.iter().filter(|row| !is_evaluation(row)).collect();
    let mut sections = vec![
        section("Reward and answers", ANSWERS, rows, &training),
        Section { heading: EVALUATIONS, figures: evaluations(rows) },
        section("Searching", SEARCHING, rows, &training),
        section("Learning", LEARNING, rows, &training),
        section("Lengths and speed", SPEED, rows, &training),
        Section { heading: "Further numbers", figures: others(&training) },
    ];
    // The evaluations keep their section even without curves, because it also holds the table.
    sections.retain(|section| section.heading == EVALUATIONS || !section.figures.is_empty());
    sections
}

/// Splits `popqa/em` into the question set `popqa` and the metric `em`. The question set of `em` is empty.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

fn section(heading: &'static str, known: &[KnownFigure], rows: &[MetricsRow], training: &[&MetricsRow]) -> Section {
    let all: Vec<_> = rows.iter().collect();
    let figures = known.iter().filter_map(|known| {
        // Validation metrics occur in training rows as well as in evaluation rows.
        let rows = |name: &str| if name.starts_with("validation_") { &all } else { training };
        let series = known.names.iter().map(|&(name, label)| Series::of(label, name, rows(name)));
        figure(known.look.title, known.look, known.names.len() > 1, series)
    });
    Section { heading, figures: figures.collect() }
}

fn figure(title: &str, look: Look, legend: bool, series: impl IntoIterator<Item = Series>) -> Option<Figure> {
    let there = |series: &Series| !(series.points.is_empty() && series.broken.is_empty());
    let smooth = |series: Series| if look.exact { series } else { series.smoothed() };
    let series: Vec<_> = series.into_iter().filter(there).map(smooth).collect();
    (!series.is_empty()).then(|| Figure { title: title.to_owned(), look, legend, series })
}

/// Returns one curve per metric and question set, if it was measured more than once.
fn evaluations(rows: &[MetricsRow]) -> Vec<Figure> {
    let rows: Vec<_> = rows.iter().filter(|row| is_evaluation(row)).collect();
    let mut names: BTreeMap<&str, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for name in rows.iter().flat_map(|row| row.values.keys()) {
        let (set, metric) = split(name);
        names.entry(metric).or_default().insert((set, name));
    }
    let drawn = EVALUATION.iter().filter_map(|&(metric, look)| {
        let series = names.get(metric)?.iter().map(|(set, name)| Series::of(set, name, &rows));
        // A single measurement makes no curve; the table has it.
        figure(look.title, look, true, series.filter(|series| series.points.len() > 1))
    });
    drawn.collect()
}

fn others(training: &[&MetricsRow]) -> Vec<Figure> {
    let known: BTreeSet<_> = [ANSWERS, SEARCHING, LEARNING, SPEED]
        .into_iter()
        .flatten()
        .flat_map(|known| known.names.iter().map(|&(name, _)| name))
        .collect();
    let names: BTreeSet<_> = training.iter().flat_map(|row| row.values.keys().map(String::as_str)).collect();
    let figure = |name: &&str| {
        let look = Look::new("").close();
        figure(&name.replace('_', " "), look, false, [Series::of(name, name, training)])
    };
    names.difference(&known).filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_drawn_once() {
        let rows = [
            MetricsRow::new(1, "sft", 0.0).with("loss", 1.0).with("of_my_own", 2.0).with("searches_graph", 1.0),
            MetricsRow::new(1, "eval", 0.0).with("popqa/em", 0.5).with("validation_loss", 1.5),
            MetricsRow::new(2, "eval", 0.0).with("popqa/em", 0.6).with("2wiki/em", 0.6),
        ];
        let sections = sections(&rows);
        let drawn: Vec<_> = sections
            .iter()
            .flat_map(|section| section.figures.iter().map(move |figure| (section.heading, figure)))
            .map(|(heading, figure)| {
                let labels: Vec<_> = figure.series.iter().map(|series| series.label.as_str()).collect();
                format!("{heading}: {}: {}", figure.title, labels.join(", "))
            })
            .collect();
        assert_eq!(
            drawn,
            [
                "Evaluation: Exact match: popqa",
                "Searching: Searches by mode: graph",
                "Learning: Loss: training, validation",
                "Further numbers: of my own: of_my_own",
            ]
        );
    }
}
