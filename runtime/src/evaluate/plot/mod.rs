//! Plots of a report as SVG: mix of modes, searches, and tokens against EM.

mod bars;
mod scatter;
mod svg;

use super::report::{EvaluationReport, SetReport};
use super::summary::{PerEpisode, Summary};
use bars::{Bar, BarChart};
use scatter::{Dot, ScatterPlot};

/// Returns the plots with their file names.
pub(super) fn draw(report: &EvaluationReport) -> Vec<(&'static str, String)> {
    vec![("modes.svg", modes(report)), ("searches.svg", searches(report)), ("tokens.svg", tokens(report))]
}

/// Names of the modes, in the order of [`by_mode`].
const MODES: &[&str] = &["passage", "graph", "hybrid", "triples", "kag", "hypergraph"];

fn by_mode(mean: &PerEpisode) -> Vec<f64> {
    vec![mean.passage, mean.graph, mean.hybrid, mean.triples, mean.kag, mean.hypergraph]
}

/// Draws the share of each mode in the searches of each arm.
fn modes(report: &EvaluationReport) -> String {
    let bar = |mean: &PerEpisode| {
        let all = mean.searches();
        by_mode(mean).into_iter().map(|count| if all > 0.0 { count / all } else { 0.0 }).collect()
    };
    bar_chart(report, "Share of searches by mode", Some(1.0), bar)
}

/// Draws the number of searches of each arm, by mode.
fn searches(report: &EvaluationReport) -> String {
    bar_chart(report, "Searches per question", None, by_mode)
}

fn bar_chart(
    report: &EvaluationReport,
    title: &str,
    end: Option<f64>,
    parts: impl Fn(&PerEpisode) -> Vec<f64>,
) -> String {
    let bars = arms(report)
        .map(|(set, summary)| Bar {
            label: format!("{} · {}", set.name, summary.policy), parts: parts(&summary.mean)
        });
    BarChart { title, end, parts: MODES, bars: bars.collect() }.draw()
}

/// Draws EM against the tokens of an episode that are computed after the prompt.
fn tokens(report: &EvaluationReport) -> String {
    let dots = arms(report).map(|(set, summary)| Dot {
        label: format!("{} · {}", set.name, summary.policy),
        x: summary.mean.thinking_tokens() + summary.mean.environment_tokens,
        y: summary.em.mean,
        error: summary.em.error,
        group: report.sets.iter().position(|other| other.name == set.name).unwrap_or(0),
    });
    ScatterPlot { title: "EM by tokens after the prompt", x: "tokens per question", y: "EM", dots: dots.collect() }
        .draw()
}

fn arms(report: &EvaluationReport) -> impl Iterator<Item = (&SetReport, &Summary)> {
    report.sets.iter().flat_map(|set| set.policies.iter().map(move |summary| (set, summary)))
}

#[cfg(test)]
mod tests {
    use super::super::{EpisodeRow, EvaluationOutcome, SearchCounts, SetOutcome};
    use super::*;

    #[test]
    fn plots_are_whole_and_escape_names() {
        let row = |passage, graph| EpisodeRow {
            searches: SearchCounts { passage, graph, ..SearchCounts::default() },
            em: 1.0,
            ..EpisodeRow::default()
        };
        let outcome = EvaluationOutcome { rows: vec![row(3, 1), row(0, 0)], seconds: 1.0 };
        let outcomes = vec![("a<b".to_owned(), outcome)];
        let set = |name: &str| SetOutcome { outcomes: outcomes.clone(), ..SetOutcome::named(name) };
        let plots = draw(&EvaluationReport::over(&[set("one"), set("two")]));
        for (name, svg) in &plots {
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{name}");
            assert!(svg.contains("one · a&lt;b") && svg.contains("two · a&lt;b") && !svg.contains("NaN"), "{svg}");
            let opened = svg.matches("<text").count();
            assert_eq!(opened, svg.matches("</text>").count(), "{name}");
        }
        let widths: Vec<&str> = plots[0].1.split("data-share='").skip(1).map(|rest| &rest[..5]).collect();
        assert_eq!(widths, ["0.750", "0.250", "0.750", "0.250"], "{}", plots[0].1);
        assert_eq!(draw(&EvaluationReport::over(&[])).len(), 3, "no arms, empty plots");
    }
}
