//! The report as comma-separated values (RFC 4180): a line per set and arm, then the lines over all sets.

use std::fmt::Write;

use super::comparison::PairedComparison;
use super::estimate::Estimate;
use super::report::EvaluationReport;
use super::summary::Summary;

/// Name of the set in lines over all sets.
const ALL: &str = "all";

const COLUMNS: &[&str] = &[
    "set",
    "policy",
    "questions",
    "failed",
    "em",
    "em_error",
    "f1",
    "f1_error",
    "searcher_f1",
    "acc_r",
    "similarity",
    "acc_l",
    "g_e",
    "support_f1",
    "uar",
    "answered",
    "valid",
    "turns",
    "passage",
    "graph",
    "hybrid",
    "triples",
    "kag",
    "hypergraph",
    "duplicates",
    "cost",
    "retrieval_seconds",
    "prompt_tokens",
    "thinking_tokens",
    "content_tokens",
    "content_per_retrieval",
    "answered_supported",
    "answered_unsupported",
    "refused_supported",
    "refused_unsupported",
    "seconds_p50",
    "seconds",
    "compared_with",
    "em_difference",
    "em_difference_low",
    "em_difference_high",
    "f1_difference",
    "f1_difference_low",
    "f1_difference_high",
];

/// Renders the report. Shares are from 0 to 1; a value that is unknown is empty.
pub(super) fn render(report: &EvaluationReport) -> String {
    let mut text = COLUMNS.join(",");
    text.push_str("\r\n");
    for set in &report.sets {
        for summary in &set.policies {
            let compared = set.compared.iter().find(|compared| compared.policy == summary.policy);
            line(&mut text, &fields(&set.name, summary, compared));
        }
    }
    let Some(across) = &report.across else { return text };
    for summary in &across.policies {
        let compared = across.compared.iter().find(|compared| compared.policy == summary.policy);
        let mut fields = vec![String::new(); COLUMNS.len()];
        // By name, because only some columns have a value over all sets.
        for (column, value) in [
            ("set", quoted(ALL)),
            ("policy", quoted(&summary.policy)),
            ("questions", summary.em.count.to_string()),
            ("em", number(summary.em.mean)),
            ("em_error", number(summary.em.error)),
            ("f1", number(summary.f1.mean)),
            ("f1_error", number(summary.f1.error)),
            ("support_f1", known(&summary.support_f1)),
            ("uar", known(&summary.uar)),
            ("valid", number(summary.valid)),
            ("cost", number(summary.cost)),
        ] {
            if let Some(place) = COLUMNS.iter().position(|name| *name == column) {
                fields[place] = value;
            }
        }
        let end = fields.len() - DIFFERENCES;
        fields[end..].clone_from_slice(&differences(compared));
        line(&mut text, &fields);
    }
    text
}

/// Number of columns about the comparison, which are the last ones.
const DIFFERENCES: usize = 7;

fn line(text: &mut String, fields: &[String]) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{}\r\n", fields.join(","));
}

fn fields(set: &str, summary: &Summary, compared: Option<&PairedComparison>) -> Vec<String> {
    let Summary { em, f1, mean, abstention, .. } = summary;
    let mut fields = vec![
        quoted(set),
        quoted(&summary.policy),
        summary.questions.to_string(),
        summary.failed.to_string(),
        number(em.mean),
        number(em.error),
        number(f1.mean),
        number(f1.error),
        known(&summary.searcher_f1),
        known(&summary.covers),
        known(&summary.similarity),
        known(&summary.judged_correct),
        known(&summary.judged_quality),
        known(&summary.support_f1),
        known(&summary.uar),
    ];
    let numbers = [
        summary.answered,
        summary.valid,
        mean.turns,
        mean.passage,
        mean.graph,
        mean.hybrid,
        mean.triples,
        mean.kag,
        mean.hypergraph,
        mean.duplicates,
        mean.cost,
        mean.retrieval_seconds,
        mean.prompt_tokens,
        mean.thinking_tokens(),
        mean.evidence_tokens,
        summary.content_per_retrieval,
    ];
    fields.extend(numbers.map(number));
    let counts = [
        abstention.answered_supported,
        abstention.answered_unsupported,
        abstention.refused_supported,
        abstention.refused_unsupported,
    ];
    fields.extend(counts.map(|count| count.to_string()));
    fields.extend([number(summary.seconds_p50), number(summary.seconds)]);
    fields.extend(differences(compared));
    fields
}

fn differences(compared: Option<&PairedComparison>) -> [String; DIFFERENCES] {
    let Some(PairedComparison { with, em, em_interval, f1, f1_interval, .. }) = compared else {
        return Default::default();
    };
    let [em, em_low, em_high, f1, f1_low, f1_high] =
        [em.mean, em_interval.low, em_interval.high, f1.mean, f1_interval.low, f1_interval.high].map(number);
    [quoted(with), em, em_low, em_high, f1, f1_low, f1_high]
}

fn known(estimate: &Estimate) -> String {
    if estimate.count > 0 { number(estimate.mean) } else { String::new() }
}

fn number(value: f64) -> String {
    format!("{value:.6}")
}

/// Quotes a field that has characters with a meaning in the format.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::{EpisodeRow, EvaluationOutcome, EvaluationReport, SearchCounts, SetOutcome};
    use super::*;

    #[test]
    fn every_line_has_every_column() {
        let searches = SearchCounts { hypergraph: 3, ..SearchCounts::default() };
        let outcome = |em: f64| EvaluationOutcome {
            rows: vec![EpisodeRow { em, searches, ..EpisodeRow::default() }, EpisodeRow::default()],
            seconds: 1.0,
        };
        let set = |name: &str| SetOutcome {
            outcomes: vec![("a, \"b\"".to_owned(), outcome(0.0)), ("c".to_owned(), outcome(1.0))],
            ..SetOutcome::named(name)
        };
        let report = EvaluationReport::over(&[set("one"), set("two")]);
        let text = render(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 2 * 2 + 2, "{text}");
        for line in &lines {
            let line = line.replace("\"a, \"\"b\"\"\"", "a");
            assert_eq!(line.split(',').count(), COLUMNS.len(), "{line}");
        }
        assert!(lines[1].starts_with("one,\"a, \"\"b\"\"\",2,0,0.000000,"), "{}", lines[1]);
        let difference = COLUMNS.iter().position(|name| *name == "em_difference");
        for line in [lines[4], lines[6]] {
            let line = line.replace("\"a, \"\"b\"\"\"", "a");
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(difference.map(|place| fields[place]), Some("0.500000"), "{line}");
        }
        assert!(lines[6].starts_with("all,c,4,,0.500000,"), "{}", lines[6]);
        let hypergraph = COLUMNS.iter().position(|name| *name == "hypergraph");
        let fields: Vec<&str> = lines[2].split(',').collect();
        assert_eq!(hypergraph.map(|place| fields[place]), Some("1.500000"), "three searches over two questions");
    }
}
