//! The report of an experiment: `report.json`, `report.md` and `report.html`, with the same content. None of them has
//! a date or a duration, so that a resumed experiment ends in the same bytes.

mod arm_report;
mod block;
mod blocks;
mod html;
mod markdown;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::arm_report::{ArmReport, OracleReport, Score, SetScores};
use super::endpoint::EndpointOutcome;
use super::error::ExperimentError;
use super::file::Experiment;
use super::results::ArmResults;
use crate::run::{RunError, durable};

/// The report of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentReport {
    /// The description, with all defaults.
    pub experiment: Experiment,
    /// Hash of the description and of all files that it names, taken before the first job.
    pub inputs: String,
    /// Results of the arms.
    pub arms: Vec<ArmReport>,
    /// Best arm per question, by set. Empty for a single arm.
    pub oracle: Vec<OracleReport>,
    /// Outcomes of the endpoints.
    pub endpoints: Vec<EndpointOutcome>,
    /// If `true`, all endpoints passed. `None` without endpoints.
    pub holds: Option<bool>,
}

impl ExperimentReport {
    /// Summarizes results.
    pub(super) fn of(
        experiment: &Experiment,
        inputs: String,
        results: &[ArmResults],
    ) -> Result<ExperimentReport, ExperimentError> {
        let endpoints = experiment.endpoint.iter().map(|endpoint| EndpointOutcome::of(experiment, endpoint, results));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        let holds = (!endpoints.is_empty()).then(|| endpoints.iter().all(|outcome| outcome.passed));
        let arms = experiment.arm.iter().zip(results).map(|(arm, results)| ArmReport::of(experiment, arm, results));
        let arms = arms.collect();
        let oracle = OracleReport::all(experiment, results);
        Ok(ExperimentReport { experiment: experiment.clone(), inputs, arms, oracle, endpoints, holds })
    }

    /// Writes the files of the report.
    pub(super) fn write(&self, dir: &Path) -> Result<(), ExperimentError> {
        let path = dir.join("report.json");
        let json = serde_json::to_string_pretty(self).map_err(|error| RunError::io("write", &path)(error.into()))?;
        durable::write(&path, json.as_bytes())?;
        durable::write(&dir.join("report.md"), self.markdown().as_bytes())?;
        let html = html::page(&self.experiment.name, &blocks::blocks(self));
        Ok(durable::write(&dir.join("report.html"), html.as_bytes())?)
    }

    /// Returns the number of seeds with which an arm was evaluated.
    fn seeds_of(&self, arm: &ArmReport) -> usize {
        let arm = self.experiment.arm.iter().find(|other| other.name == arm.name);
        arm.map_or(1, |arm| self.experiment.seeds_of(arm).len())
    }

    /// Renders the report as Markdown.
    pub fn markdown(&self) -> String {
        markdown::render(&blocks::blocks(self))
    }
}
