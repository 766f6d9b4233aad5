//! Results over several question sets, each with the same weight.

use serde::{Deserialize, Serialize};

use super::comparison::PairedComparison;
use super::estimate::Estimate;
use super::report::SetOutcome;
use super::row::EpisodeRow;
use super::summary::Summary;

/// Results over all question sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcrossReport {
    /// Results of the arms that ran in every set.
    pub policies: Vec<AcrossSummary>,
    /// Comparison of each further arm with the first.
    pub compared: Vec<PairedComparison>,
}

/// Means of an arm over the question sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AcrossSummary {
    /// Display name of the arm.
    pub policy: String,
    /// Exact match.
    pub em: Estimate,
    /// F1 of the answers.
    pub f1: Estimate,
    /// SF-F1.
    pub support_f1: Estimate,
    /// Unsupported answer rate.
    pub uar: Estimate,
    /// Share of episodes that kept the protocol's format.
    pub valid: f64,
    /// Searches per episode.
    pub searches: f64,
    /// Cost of the searches per episode.
    pub cost: f64,
    /// Tokens that the arm sampled, per episode.
    pub sampled_tokens: f64,
}

impl AcrossReport {
    /// Averages over `sets`. `None` for fewer than two sets, or if no arm ran in all of them.
    pub(super) fn of(sets: &[SetOutcome]) -> Option<AcrossReport> {
        let (first, others) = sets.split_first()?;
        let ran = |set: &SetOutcome, name: &str| set.ran().any(|(other, _)| other == name);
        let names: Vec<&str> =
            first.ran().map(|(name, _)| name).filter(|name| others.iter().all(|set| ran(set, name))).collect();
        let (&baseline, compared) = names.split_first().filter(|_| !others.is_empty())?;
        let base = rows(sets, baseline);
        let compare = |name: &&str| PairedComparison::of_sets((name, &rows(sets, name)), (baseline, &base));
        Some(AcrossReport {
            policies: names.iter().map(|name| AcrossSummary::of(name, sets)).collect(),
            compared: compared.iter().map(compare).collect(),
        })
    }
}

impl AcrossSummary {
    fn of(name: &str, sets: &[SetOutcome]) -> AcrossSummary {
        let ran = sets.iter().flat_map(|set| set.ran().find(|(other, _)| *other == name));
        let summaries: Vec<Summary> = ran.map(|(_, outcome)| Summary::of(name, outcome)).collect();
        let pooled =
            |value: fn(&Summary) -> Estimate| Estimate::pooled(&summaries.iter().map(value).collect::<Vec<_>>());
        let mean =
            |value: fn(&Summary) -> f64| summaries.iter().map(value).sum::<f64>() / summaries.len().max(1) as f64;
        AcrossSummary {
            policy: name.to_owned(),
            em: pooled(|summary| summary.em),
            f1: pooled(|summary| summary.f1),
            support_f1: pooled(|summary| summary.support_f1),
            uar: pooled(|summary| summary.uar),
            valid: mean(|summary| summary.valid),
            searches: mean(|summary| summary.mean.searches()),
            cost: mean(|summary| summary.mean.cost),
            sampled_tokens: mean(|summary| summary.mean.sampled_tokens),
        }
    }
}

/// Rows of an arm by set.
fn rows<'a>(sets: &'a [SetOutcome], name: &str) -> Vec<&'a [EpisodeRow]> {
    let find = |set: &'a SetOutcome| set.ran().find(|(other, _)| *other == name);
    sets.iter().filter_map(|set| find(set).map(|(_, outcome)| outcome.rows.as_slice())).collect()
}
