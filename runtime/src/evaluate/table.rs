//! Summaries as a text table.

use std::io::{self, Write};

use super::summary::{Estimate, PairedComparison, PerEpisode, Summary};

/// Writes one line per policy, then the comparison of each with the first. Shares are in percent.
///
/// # Errors
/// If `out` cannot be written.
pub fn print(summaries: &[Summary], duels: &[PairedComparison], out: &mut impl Write) -> io::Result<()> {
    let width = summaries.iter().map(|summary| summary.policy.chars().count()).chain([6]).max().unwrap_or(6);
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
    for PairedComparison { policy, with, em, f1, won, lost } in duels {
        let signed = |estimate: &Estimate| format!("{:+.1} ± {:.1}", estimate.mean * 100.0, estimate.error * 100.0);
        writeln!(out, "{policy} vs. {with}: EM {}, F1 {}; {won} won, {lost} lost", signed(em), signed(f1))?;
    }
    Ok(())
}

/// Formats searches by mode, with those for triples if there are any.
fn searches(mean: &PerEpisode) -> String {
    let first = format!("{:.2}/{:.2}/{:.2}", mean.passage, mean.graph, mean.hybrid);
    let triples = mean.triples + mean.kag;
    if triples > 0.0 { format!("{first}/{triples:.2}") } else { first }
}

/// Formats one line, in the order of the column titles.
fn cells(summary: &Summary) -> [String; 15] {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    let known = |estimate: &Estimate| if estimate.count > 0 { percent(estimate.mean) } else { "-".to_owned() };
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
