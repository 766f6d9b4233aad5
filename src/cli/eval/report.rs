//! Report of `waymark eval retrieval`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

/// Results of all search methods on one set of questions.
#[derive(Debug, Serialize)]
pub(super) struct RetrievalReport {
    /// Name of the corpus.
    pub(super) corpus: String,
    /// Number of passages in the index.
    pub(super) passages: u64,
    /// Number of the searched snapshot.
    pub(super) snapshot: u64,
    /// Name of the index's embedder.
    pub(super) embedder: String,
    /// Number of questions searched for.
    pub(super) questions: usize,
    /// Number of questions left out because their support is unknown.
    pub(super) left_out: usize,
    /// Number of supporting passages, counted per question, missing from the index.
    pub(super) missing: usize,
    /// Number of concurrent searches.
    pub(super) threads: usize,
    /// Cutoffs of the lists.
    pub(super) cuts: Vec<usize>,
    /// One row per search method.
    pub(super) rows: Vec<MethodScores>,
}

/// Results of one search method.
#[derive(Debug, Serialize)]
pub(super) struct MethodScores {
    /// Name of the method.
    #[serde(rename = "way")]
    pub(super) method: String,
    /// Mean recall of supporting passages at each cutoff.
    pub(super) recall: BTreeMap<usize, f64>,
    /// Share of questions with all supporting passages before each cutoff.
    pub(super) all_found: BTreeMap<usize, f64>,
    /// Mean reciprocal rank of the first supporting passage within the largest cutoff.
    pub(super) mrr: f64,
    /// Mean time of a search, embedding included.
    pub(super) milliseconds: f64,
    /// Median time of a search.
    pub(super) milliseconds_p50: f64,
    /// 95th percentile of the time of a search.
    pub(super) milliseconds_p95: f64,
}

impl RetrievalReport {
    /// Writes a text table; shares are in percent.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let RetrievalReport { corpus, passages, snapshot, questions, left_out, missing, threads, .. } = self;
        writeln!(
            out,
            "{corpus}: {passages} passages, snapshot {snapshot}, {questions} questions, {threads} at a time"
        )?;
        if *left_out > 0 {
            writeln!(out, "{left_out} questions were left out: their supporting passages are unknown")?;
        }
        if *missing > 0 {
            writeln!(out, "{missing} supporting passages are not in the index")?;
        }
        let width = self.rows.iter().map(|row| row.method.len()).chain([6]).max().unwrap_or(6);
        write!(out, "{:width$}", "")?;
        for cut in &self.cuts {
            write!(out, " {:>7}", format!("R@{cut}"))?;
        }
        for cut in &self.cuts {
            write!(out, " {:>7}", format!("all@{cut}"))?;
        }
        writeln!(out, " {:>7} {:>8} {:>8} {:>8}", "MRR", "ms", "p50", "p95")?;
        for row in &self.rows {
            write!(out, "{:width$}", row.method)?;
            for share in row.recall.values().chain(row.all_found.values()) {
                write!(out, " {:>7.2}", share * 100.0)?;
            }
            let MethodScores { mrr, milliseconds, milliseconds_p50, milliseconds_p95, .. } = row;
            writeln!(out, " {mrr:>7.4} {milliseconds:>8.2} {milliseconds_p50:>8.2} {milliseconds_p95:>8.2}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_table_lines_up() {
        let row = |method: &str, milliseconds| MethodScores {
            method: method.to_owned(),
            recall: BTreeMap::from([(2, 0.5), (10, 1.0)]),
            all_found: BTreeMap::from([(2, 0.25), (10, 0.5)]),
            mrr: 0.625,
            milliseconds,
            milliseconds_p50: 1.0,
            milliseconds_p95: 12.345,
        };
        let report = RetrievalReport {
            corpus: "2wiki".to_owned(),
            passages: 3,
            snapshot: 1,
            embedder: "e".to_owned(),
            questions: 2,
            left_out: 5,
            missing: 1,
            threads: 2,
            cuts: vec![2, 10],
            rows: vec![row("passage:bm25", 1.5), row("graph", 120.25)],
        };
        let mut out = Vec::new();
        report.print(&mut out).unwrap();
        let expected = "\
2wiki: 3 passages, snapshot 1, 2 questions, 2 at a time
5 questions were left out: their supporting passages are unknown
1 supporting passages are not in the index
                 R@2    R@10   all@2  all@10     MRR       ms      p50      p95
passage:bm25   50.00  100.00   25.00   50.00  0.6250     1.50     1.00    12.35
graph          50.00  100.00   25.00   50.00  0.6250   120.25     1.00    12.35
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["rows"][0]["recall"]["10"], &json["cuts"][1]), (&1.0.into(), &10.into()));
    }
}
