//! Scores of arms, read from the rows of their evaluations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use waymark_runtime::evaluate::{EpisodeRow, LabeledRow};

use super::endpoint::Metric;
use super::error::ExperimentError;
use super::file::{Arm, Experiment};

/// Rows of an evaluation by set, in the order of the questions' keys.
type Rows = BTreeMap<String, Vec<EpisodeRow>>;

/// Results of an arm.
#[derive(Debug)]
pub(super) struct ArmResults {
    /// Name of the arm.
    pub(super) name: String,
    /// Results by seed. A single one without a seed if the arm depends on none.
    pub(super) seeds: Vec<(Option<u64>, Rows)>,
}

impl ArmResults {
    /// Reads the results of `arm` from the directories of its evaluations.
    pub(super) fn read(
        experiment: &Experiment,
        arm: &Arm,
        dir: impl Fn(Option<u64>) -> PathBuf,
    ) -> Result<ArmResults, ExperimentError> {
        let mut seeds = Vec::new();
        for seed in experiment.seeds_of(arm) {
            seeds.push((seed, rows(experiment, &dir(seed).join("rows.jsonl"))?));
        }
        Ok(ArmResults { name: arm.name.clone(), seeds })
    }

    /// Returns the results with this name.
    pub(super) fn named<'a>(results: &'a [ArmResults], name: &str) -> Result<&'a ArmResults, ExperimentError> {
        results
            .iter()
            .find(|results| results.name == name)
            .ok_or_else(|| ExperimentError::Rows { path: name.into(), reason: "the arm has no results".to_owned() })
    }

    /// Returns the differences from `other` in a set, by seed and question, `None` where an arm has no value. The seeds of
    /// both arms are paired in their order. An arm without seeds is compared with every seed of the other arm.
    ///
    /// # Errors
    /// If the arms or their seeds answered different questions.
    pub(super) fn differences(
        &self,
        other: &ArmResults,
        set: &str,
        metric: Metric,
    ) -> Result<Vec<Vec<Option<f64>>>, ExperimentError> {
        let refuse = |reason: String| ExperimentError::Rows { path: set.into(), reason };
        let count = self.seeds.len().max(other.seeds.len());
        let mut seeds = Vec::with_capacity(count);
        for place in 0..count {
            let absent = || refuse("the set has no results".to_owned());
            let own = self.rows_at(place, set).ok_or_else(absent)?;
            let theirs = other.rows_at(place, set).ok_or_else(absent)?;
            let first = self.rows_at(0, set).ok_or_else(absent)?;
            let same =
                |rows: &[EpisodeRow]| rows.len() == own.len() && rows.iter().zip(own).all(|(a, b)| key(a) == key(b));
            if !same(theirs) || !same(first) {
                return Err(refuse(format!("{} and {} answered different questions", self.name, other.name)));
            }
            let pairs = own.iter().zip(theirs);
            // Differences are paired, so a question counts only if both arms have a value.
            seeds.push(pairs.map(|(a, b)| Some(metric.of(a)? - metric.of(b)?)).collect::<Vec<Option<f64>>>());
        }
        Ok(seeds)
    }

    /// Returns the rows of a set for a seed; an arm without seeds has the same for all.
    fn rows_at(&self, place: usize, set: &str) -> Option<&Vec<EpisodeRow>> {
        let (_, rows) = self.seeds.get(place.min(self.seeds.len().saturating_sub(1)))?;
        rows.get(set)
    }

    /// Iterates over the rows of a set, of all seeds.
    pub(super) fn rows<'a>(&'a self, set: &'a str) -> impl Iterator<Item = &'a EpisodeRow> {
        self.seeds.iter().filter_map(move |(_, rows)| rows.get(set)).flatten()
    }

    /// Returns the values of a metric in a set, by seed.
    pub(super) fn values(&self, set: &str, metric: Metric) -> Vec<Vec<f64>> {
        let of = |(_, rows): &(Option<u64>, Rows)| {
            rows.get(set).map(|rows| rows.iter().filter_map(|row| metric.of(row)).collect()).unwrap_or_default()
        };
        self.seeds.iter().map(of).collect()
    }
}

/// Reads rows and sorts them, so that rows of the same question stand at the same place in all arms.
fn rows(experiment: &Experiment, path: &Path) -> Result<Rows, ExperimentError> {
    let read = LabeledRow::read(path)
        .map_err(|error| ExperimentError::Rows { path: path.to_owned(), reason: format!("{error:#}") })?;
    let mut sets: Rows = BTreeMap::new();
    for LabeledRow { set, row, .. } in read {
        sets.entry(set).or_default().push(row);
    }
    for set in &experiment.evaluation {
        let Some(rows) = sets.get_mut(&set.name) else {
            let reason = format!("no rows of the set {}", set.name);
            return Err(ExperimentError::Rows { path: path.to_owned(), reason });
        };
        rows.sort_by(|a, b| key(a).cmp(&key(b)));
    }
    Ok(sets)
}

fn key(row: &EpisodeRow) -> (&str, &str) {
    (&row.id, &row.question)
}
