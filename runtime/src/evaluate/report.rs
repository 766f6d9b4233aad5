//! The report of an evaluation: question sets with the results of all arms.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use waymark_agent::metric::Cost;

use super::across::AcrossReport;
use super::comparison::PairedComparison;
use super::estimate::Estimate;
use super::row::EpisodeRow;
use super::summary::Summary;
use super::{EvaluationOutcome, table};

/// Results of all arms on one question set.
#[derive(Debug, Clone, PartialEq)]
pub struct SetOutcome {
    /// Display name of the set.
    pub name: String,
    /// Name of the corpus.
    pub corpus: String,
    /// Number of passages in the index.
    pub passages: u64,
    /// Number of the searched snapshot.
    pub snapshot: u64,
    /// Cost model of searches over the index.
    pub cost: Cost,
    /// Results by name of the arm, in the order of the arms.
    pub outcomes: Vec<(String, EvaluationOutcome)>,
}

impl SetOutcome {
    /// Creates the outcome of a set without arms.
    pub fn named(name: &str) -> SetOutcome {
        SetOutcome {
            name: name.to_owned(),
            corpus: name.to_owned(),
            passages: 0,
            snapshot: 0,
            cost: Cost::default(),
            outcomes: Vec::new(),
        }
    }

    /// Iterates over the arms with at least one episode that did not fail.
    pub fn ran(&self) -> impl Iterator<Item = (&str, &EvaluationOutcome)> {
        let outcomes = self.outcomes.iter().filter(|(_, outcome)| outcome.failure().is_none());
        outcomes.map(|(name, outcome)| (name.as_str(), outcome))
    }
}

/// The report of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationReport {
    /// Name of the base model.
    pub model: String,
    /// Seed of the sampler.
    pub seed: u64,
    /// Sampling temperature. `None` if each policy used its own.
    pub temperature: Option<f32>,
    /// Guided decoding. `None` if each policy used its own setting.
    pub guided: Option<bool>,
    /// Number of passages per search. `None` if each arm used its own.
    pub k: Option<usize>,
    /// Number of concurrent episodes.
    pub concurrency: usize,
    /// Name of the judge's model. `None` without a judge.
    pub judge: Option<String>,
    /// Metrics that were not computed.
    pub left_out: Vec<LeftOutMetric>,
    /// Results by question set.
    pub sets: Vec<SetReport>,
    /// Results over all question sets. `None` for a single one, or if no arm ran in all of them.
    pub across: Option<AcrossReport>,
}

/// A metric that was not computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutMetric {
    /// Name of the metric.
    pub metric: String,
    /// Reason.
    pub reason: String,
}

/// Results on one question set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetReport {
    /// Display name of the set.
    pub name: String,
    /// Name of the corpus.
    pub corpus: String,
    /// Number of passages in the index.
    pub passages: u64,
    /// Number of the searched snapshot.
    pub snapshot: u64,
    /// Number of questions.
    pub questions: usize,
    /// Cost model of searches over the index.
    pub cost: Cost,
    /// Results of the arms.
    pub policies: Vec<Summary>,
    /// Comparison of each further arm with the first.
    pub compared: Vec<PairedComparison>,
    /// Best of all arms, question by question. `None` for a single arm.
    pub oracle: Option<OracleSummary>,
    /// Arms whose episodes all failed.
    pub failed: Vec<FailedPolicy>,
}

/// Scores of an oracle that knows for each question which arm answers it best. No arm can be expected to reach them,
/// because some of the differences between arms are chance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OracleSummary {
    /// Exact match.
    pub em: Estimate,
    /// F1 of the answers.
    pub f1: Estimate,
}

/// An arm whose episodes all failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedPolicy {
    /// Name of the arm.
    pub policy: String,
    /// Error of the first episode.
    pub error: String,
}

impl SetReport {
    /// Summarizes the results on a set.
    pub fn of(set: &SetOutcome) -> SetReport {
        let ran: Vec<(&str, &EvaluationOutcome)> = set.ran().collect();
        let beside = |&(name, other): &(&str, &EvaluationOutcome)| {
            // There is a first entry, because only later entries are compared.
            let (first, outcome) = ran[0];
            PairedComparison::of((name, &other.rows), (first, &outcome.rows))
        };
        let broken = |(name, outcome): &(String, EvaluationOutcome)| {
            outcome.failure().map(|error| FailedPolicy { policy: name.clone(), error: error.to_owned() })
        };
        SetReport {
            name: set.name.clone(),
            corpus: set.corpus.clone(),
            passages: set.passages,
            snapshot: set.snapshot,
            questions: set.outcomes.first().map_or(0, |(_, outcome)| outcome.rows.len()),
            cost: set.cost,
            policies: ran.iter().map(|&(name, outcome)| Summary::of(name, outcome)).collect(),
            compared: ran.iter().skip(1).map(beside).collect(),
            oracle: (ran.len() > 1).then(|| OracleSummary::of(&ran)),
            failed: set.outcomes.iter().filter_map(broken).collect(),
        }
    }
}

impl OracleSummary {
    fn of(ran: &[(&str, &EvaluationOutcome)]) -> OracleSummary {
        let questions = ran.first().map_or(0, |(_, outcome)| outcome.rows.len());
        let best = |value: fn(&EpisodeRow) -> f64| {
            let of = move |place: usize| ran.iter().map(|(_, outcome)| value(&outcome.rows[place])).fold(0.0, f64::max);
            Estimate::of((0..questions).map(of))
        };
        OracleSummary { em: best(|row| row.em), f1: best(|row| row.f1) }
    }
}

impl EvaluationReport {
    /// Summarizes the results on `sets`. The settings of the evaluation are left at their defaults.
    pub fn over(sets: &[SetOutcome]) -> EvaluationReport {
        EvaluationReport {
            model: String::new(),
            seed: 0,
            temperature: None,
            guided: None,
            k: None,
            concurrency: 1,
            judge: None,
            left_out: Vec::new(),
            sets: sets.iter().map(SetReport::of).collect(),
            across: AcrossReport::of(sets),
        }
    }

    /// Iterates over all arms that failed, with their errors.
    pub fn failed(&self) -> impl Iterator<Item = &FailedPolicy> {
        self.sets.iter().flat_map(|set| &set.failed)
    }

    /// Writes the tables of all sets, then the one over all sets.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for set in self.sets.iter().filter(|set| !set.policies.is_empty()) {
            let SetReport { corpus, passages, snapshot, questions, .. } = set;
            writeln!(out, "{corpus}: {passages} passages, snapshot {snapshot}, {questions} questions")?;
            table::print(&set.policies, &set.compared, out)?;
            if let Some(OracleSummary { em, f1 }) = &set.oracle {
                writeln!(out, "best arm per question: EM {:.1}, F1 {:.1}", em.mean * 100.0, f1.mean * 100.0)?;
            }
            table::print_measures(&set.policies, out)?;
        }
        if let Some(across) = &self.across {
            writeln!(out, "\nall {} sets, each with the same weight", self.sets.len())?;
            table::print_across(across, out)?;
        }
        for LeftOutMetric { metric, reason } in &self.left_out {
            writeln!(out, "{metric} was left out: {reason}")?;
        }
        Ok(())
    }
}
