//! Summaries as a text table.

use std::io::{self, Write};

use super::across::AcrossReport;
use super::bootstrap::Interval;
use super::comparison::PairedComparison;
use super::estimate::Estimate;
use super::summary::{PerEpisode, Summary};

/// Writes one line per policy, then the comparison of each policy with the first. Shares are in percent.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(summaries: &[Summary], duels: &[PairedComparison], out: &mut impl Write) -> io::Result<()> {
    let width = width(summaries.iter().map(|summary| summary.policy.as_str()));
    let titles = [
        ("EM", 12),
        ("F1", 12),
        ("SF-F1", 6),
        ("UAR", 6),
        ("answered", 8),
        ("valid", 6),
        ("turns", 6),
        ("p/g/h", 14),
        ("cost", 6),
        ("ms", 7),
        ("sampled", 8),
        ("observed", 8),
        ("p50 s", 7),
        ("p95 s", 7),
        ("tok/s", 7),
    ];
    write!(out, "{:width$}", "policy")?;
    for (title, width) in titles {
        write!(out, " {title:>width$}")?;
    }
    writeln!(out)?;
    for summary in summaries {
        write!(out, "{:width$}", summary.policy)?;
        for (cell, (_, width)) in cells(summary).into_iter().zip(titles) {
            write!(out, " {cell:>width$}")?;
        }
        writeln!(out)?;
        if summary.failed > 0 {
            writeln!(out, "{:width$} {} of {} episodes failed", "", summary.failed, summary.questions)?;
        }
    }
    print_comparisons(duels, out)
}

/// Writes one line per paired comparison.
fn print_comparisons(duels: &[PairedComparison], out: &mut impl Write) -> io::Result<()> {
    for PairedComparison { policy, with, em, em_interval, f1, f1_interval, won, lost } in duels {
        let signed = |estimate: &Estimate| format!("{:+.1} ± {:.1}", estimate.mean * 100.0, estimate.error * 100.0);
        let within = |interval: &Interval| format!("[{:+.1}, {:+.1}]", interval.low * 100.0, interval.high * 100.0);
        writeln!(
            out,
            "{policy} vs. {with}: EM {} {}, F1 {} {}; {won} won, {lost} lost",
            signed(em),
            within(em_interval),
            signed(f1),
            within(f1_interval)
        )?;
    }
    Ok(())
}

/// Writes the papers' further measures, which the first table lacks: one line per policy, shares in percent.
pub(super) fn print_measures(summaries: &[Summary], out: &mut impl Write) -> io::Result<()> {
    let width = width(summaries.iter().map(|summary| summary.policy.as_str()));
    writeln!(
        out,
        "{:width$} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>6} {:>6} {:>13} {:>13}  steps",
        "",
        "RS-F1",
        "ACC_R",
        "SBERT",
        "ACC_L",
        "G-E",
        "thinking",
        "content",
        "CpR",
        "dup",
        "false answer",
        "false refusal"
    )?;
    for summary in summaries {
        let share = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", share * 100.0));
        let steps: Vec<String> = summary.steps.iter().map(usize::to_string).collect();
        writeln!(
            out,
            "{:width$} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8.0} {:>8.0} {:>6.0} {:>6.2} {:>13} {:>13}  {}",
            summary.policy,
            known(&summary.searcher_f1),
            known(&summary.covers),
            known(&summary.similarity),
            known(&summary.judged_correct),
            known(&summary.judged_quality),
            summary.mean.thinking_tokens(),
            summary.mean.evidence_tokens,
            summary.content_per_retrieval,
            summary.mean.duplicates,
            share(summary.abstention.false_answers()),
            share(summary.abstention.false_refusals()),
            steps.join("/"),
        )?;
    }
    Ok(())
}

/// Writes the means over all question sets, then the comparison of each policy with the first.
pub(super) fn print_across(across: &AcrossReport, out: &mut impl Write) -> io::Result<()> {
    let width = width(across.policies.iter().map(|summary| summary.policy.as_str()));
    writeln!(
        out,
        "{:width$} {:>12} {:>12} {:>6} {:>6} {:>6} {:>8} {:>6} {:>8}",
        "policy", "EM", "F1", "SF-F1", "UAR", "valid", "searches", "cost", "sampled"
    )?;
    for summary in &across.policies {
        let sure = |estimate: &Estimate| format!("{:.1} ± {:.1}", estimate.mean * 100.0, estimate.error * 100.0);
        writeln!(
            out,
            "{:width$} {:>12} {:>12} {:>6} {:>6} {:>6.1} {:>8.2} {:>6.2} {:>8.0}",
            summary.policy,
            sure(&summary.em),
            sure(&summary.f1),
            known(&summary.support_f1),
            known(&summary.uar),
            summary.valid * 100.0,
            summary.searches,
            summary.cost,
            summary.sampled_tokens,
        )?;
    }
    print_comparisons(&across.compared, out)
}

/// Returns the width of the first column.
fn width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(|name| name.chars().count()).chain([6]).max().unwrap_or(6)
}

/// Formats the numbers of searches by mode. Searches for triples, KAG and hypergraph searches share a fourth number,
/// which is left out if it is 0.
fn searches(mean: &PerEpisode) -> String {
    let first = format!("{:.2}/{:.2}/{:.2}", mean.passage, mean.graph, mean.hybrid);
    let triples = mean.triples + mean.kag + mean.hypergraph;
    if triples > 0.0 { format!("{first}/{triples:.2}") } else { first }
}

/// Formats a mean in percent; a hyphen if it is unknown, because it has no values.
fn known(estimate: &Estimate) -> String {
    if estimate.count > 0 { format!("{:.1}", estimate.mean * 100.0) } else { "-".to_owned() }
}

/// Formats one line, in the order of the column titles.
fn cells(summary: &Summary) -> [String; 15] {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let sure = |estimate: &Estimate| format!("{:.1} ± {:.1}", estimate.mean * 100.0, estimate.error * 100.0);
    let mean = &summary.mean;
    [
        sure(&summary.em),
        sure(&summary.f1),
        known(&summary.support_f1),
        known(&summary.uar),
        percent(summary.answered),
        percent(summary.valid),
        format!("{:.2}", mean.turns),
        searches(mean),
        format!("{:.2}", mean.cost),
        format!("{:.1}", mean.retrieval_seconds * 1e3),
        format!("{:.0}", mean.sampled_tokens),
        format!("{:.0}", mean.environment_tokens),
        format!("{:.2}", summary.seconds_p50),
        format!("{:.2}", summary.seconds_p95),
        format!("{:.0}", summary.tokens_per_second),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{AcrossSummary, EpisodeRow, EvaluationOutcome};
    use super::*;

    #[test]
    fn means_without_values_are_hyphens() {
        let known = Estimate { mean: 0.25, error: 0.0, count: 4 };
        let across = AcrossSummary {
            policy: "p".to_owned(),
            em: known,
            f1: known,
            support_f1: Estimate::default(),
            uar: Estimate::default(),
            valid: 1.0,
            searches: 1.0,
            cost: 1.0,
            sampled_tokens: 9.0,
        };
        let supported = AcrossSummary { support_f1: known, uar: known, ..across.clone() };
        let report = AcrossReport { policies: vec![across, supported], compared: Vec::new() };
        let mut out = Vec::new();
        print_across(&report, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let words = |line: usize| text.lines().nth(line).unwrap().split_whitespace().skip(7).collect::<Vec<_>>();
        assert_eq!(words(1)[..3], ["-", "-", "100.0"], "{text}");
        assert_eq!(words(2)[..3], ["25.0", "25.0", "100.0"], "{text}");
        let outcome = EvaluationOutcome { rows: vec![EpisodeRow::default()], seconds: 1.0 };
        assert_eq!(cells(&Summary::of("p", &outcome))[2..4], ["-", "-"]);
    }
}
