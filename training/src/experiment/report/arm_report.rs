//! Results of an arm, and of an oracle over all arms.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use waymark_runtime::evaluate::{EpisodeRow, KindSummary};

use crate::experiment::endpoint::Metric;
use crate::experiment::file::{Arm, Experiment};
use crate::experiment::results::ArmResults;

/// Results of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmReport {
    /// Name of the arm.
    pub name: String,
    /// Results by evaluation set, in the order of the description.
    pub sets: Vec<SetScores>,
}

/// Results of an arm on a set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetScores {
    /// Name of the set.
    pub set: String,
    /// Number of questions.
    pub questions: usize,
    /// Number of episodes that failed, over all seeds. They count as wrong.
    pub failed: usize,
    /// Scores by metric.
    pub scores: BTreeMap<Metric, Score>,
    /// Searches per question by mode: passage, graph, hybrid, triples, kag, hypergraph. Failed episodes are left out.
    pub modes: [f64; 6],
    /// Scores by kind of question, over all seeds, with errors of questions and of seeds together.
    pub kinds: Vec<KindSummary>,
}

/// Score of an arm on a set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Mean over seeds and questions.
    pub mean: f64,
    /// Standard error of the mean: of questions and of seeds together.
    pub error: f64,
    /// Mean by seed.
    pub by_seed: Vec<f64>,
}

/// Scores of an oracle that takes the best arm for each question, by EM and then by F1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OracleReport {
    /// Name of the set.
    pub set: String,
    /// EM of the oracle.
    pub em: f64,
    /// F1 of the oracle.
    pub f1: f64,
    /// Name of the arm with the highest EM.
    pub best: String,
    /// EM of that arm.
    pub best_em: f64,
}

impl ArmReport {
    pub(super) fn of(experiment: &Experiment, arm: &Arm, results: &ArmResults) -> ArmReport {
        let sets = experiment.evaluation.iter().map(|set| SetScores::of(&set.name, results)).collect();
        ArmReport { name: arm.name.clone(), sets }
    }
}

impl SetScores {
    fn of(set: &str, results: &ArmResults) -> SetScores {
        let rows: Vec<&EpisodeRow> = results.rows(set).collect();
        let seeds = results.seeds.len().max(1);
        let ran: Vec<&EpisodeRow> = rows.iter().copied().filter(|row| row.error.is_none()).collect();
        let per = |count: fn(&EpisodeRow) -> usize| {
            ran.iter().map(|row| count(row)).sum::<usize>() as f64 / ran.len().max(1) as f64
        };
        let scores =
            Metric::SHOWN.into_iter().filter_map(|metric| Some((metric, Score::of(&results.values(set, metric))?)));
        SetScores {
            set: set.to_owned(),
            questions: rows.len() / seeds,
            failed: rows.len() - ran.len(),
            scores: scores.collect(),
            modes: [
                per(|row| row.searches.passage),
                per(|row| row.searches.graph),
                per(|row| row.searches.hybrid),
                per(|row| row.searches.triples),
                per(|row| row.searches.kag),
                per(|row| row.searches.hypergraph),
            ],
            kinds: kinds(set, results),
        }
    }
}

/// Summarizes the kinds of questions of a set, with the errors of [`Score`].
fn kinds(set: &str, results: &ArmResults) -> Vec<KindSummary> {
    let mut kinds = KindSummary::all(results.rows(set));
    for summary in &mut kinds {
        let kind = summary.kind.clone();
        let error = |value: fn(&EpisodeRow) -> Option<f64>| {
            let of_kind = |row: &&EpisodeRow| row.kind.as_deref() == Some(kind.as_str());
            let values = |rows: &Vec<EpisodeRow>| rows.iter().filter(of_kind).filter_map(value).collect();
            let seeds: Vec<Vec<f64>> = results.seeds.iter().filter_map(|(_, rows)| rows.get(set)).map(values).collect();
            Score::of(&seeds).map_or(0.0, |score| score.error)
        };
        summary.em.error = error(|row| Some(row.em));
        summary.f1.error = error(|row| Some(row.f1));
        summary.supported.error = error(|row| row.supported.map(|holds| f64::from(u8::from(holds))));
    }
    kinds
}

impl Score {
    /// Averages values by seed and question. `None` if there are none.
    fn of(seeds: &[Vec<f64>]) -> Option<Score> {
        let known: Vec<&Vec<f64>> = seeds.iter().filter(|values| !values.is_empty()).collect();
        let count = known.len() as f64;
        let by_seed: Vec<f64> = known.iter().map(|values| mean(values)).collect();
        if by_seed.is_empty() {
            return None;
        }
        // Questions are the same for all seeds, so their error does not shrink with the number of seeds.
        let questions = known.iter().map(|values| variance(values) / values.len() as f64).sum::<f64>() / count;
        let error = (questions + variance(&by_seed) / count).sqrt();
        Some(Score { mean: mean(&by_seed), error, by_seed })
    }
}

impl OracleReport {
    /// Compares all arms, each with its first seed. Returns nothing for a single arm.
    pub(super) fn all(experiment: &Experiment, results: &[ArmResults]) -> Vec<OracleReport> {
        if results.len() < 2 {
            return Vec::new();
        }
        experiment.evaluation.iter().filter_map(|set| OracleReport::of(&set.name, results)).collect()
    }

    fn of(set: &str, results: &[ArmResults]) -> Option<OracleReport> {
        let arms: Vec<&Vec<EpisodeRow>> = results.iter().filter_map(|arm| arm.seeds.first()?.1.get(set)).collect();
        let questions = arms.iter().map(|rows| rows.len()).min()?;
        let best = |place: usize| {
            let scores = arms.iter().map(|rows| (rows[place].em, rows[place].f1));
            scores.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))).unwrap_or_default()
        };
        let scores: Vec<(f64, f64)> = (0..questions).map(best).collect();
        let em_of = |rows: &[EpisodeRow]| mean(&rows.iter().map(|row| row.em).collect::<Vec<_>>());
        let (best, best_em) = results
            .iter()
            .zip(&arms)
            .map(|(arm, rows)| (arm.name.clone(), em_of(rows)))
            .reduce(|best, other| if other.1 > best.1 { other } else { best })?;
        let em = mean(&scores.iter().map(|score| score.0).collect::<Vec<_>>());
        let f1 = mean(&scores.iter().map(|score| score.1).collect::<Vec<_>>());
        Some(OracleReport { set: set.to_owned(), em, f1, best, best_em })
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the variance with Bessel's correction; 0 for fewer than two values.
fn variance(values: &[f64]) -> f64 {
    let center = mean(values);
    let squares: f64 = values.iter().map(|value| (value - center).powi(2)).sum();
    if values.len() > 1 { squares / (values.len() - 1) as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_runtime::evaluate::SearchCounts;

    use super::*;

    #[test]
    fn errors_join_questions_and_seeds() {
        let one = Score::of(&[vec![0.0, 1.0, 0.0, 1.0]]).unwrap();
        assert_eq!((one.mean, one.by_seed.len()), (0.5, 1));
        assert!((one.error - (1.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        let seeds = Score::of(&[vec![0.0; 4], vec![1.0; 4]]).unwrap();
        assert!((seeds.error - 0.5).abs() < 1e-12, "the seeds differ by one: {seeds:?}");
        assert_eq!(Score::of(&[vec![]]), None);
    }

    #[test]
    fn failed_episodes_are_left_out_of_the_searches() {
        let searches = SearchCounts { graph: 2, ..SearchCounts::default() };
        let ran = EpisodeRow { searches, ..EpisodeRow::default() };
        let failed = EpisodeRow { error: Some("too long".to_owned()), ..EpisodeRow::default() };
        let seeds = vec![(None, BTreeMap::from([("words".to_owned(), vec![ran, failed])]))];
        let scores = SetScores::of("words", &ArmResults { name: "arm".to_owned(), seeds });
        assert_eq!((scores.questions, scores.failed), (2, 1));
        assert_eq!(scores.modes, [0.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
    }

    /// Otherwise the errors would shrink with the number of seeds, whose questions are the same.
    #[test]
    fn errors_of_kinds_are_those_of_scores() {
        let row = |em: f64| EpisodeRow { kind: Some("bridge".to_owned()), em, f1: em, ..EpisodeRow::default() };
        let rows = |scores: &[f64]| BTreeMap::from([("words".to_owned(), scores.iter().copied().map(row).collect())]);
        let seeds = vec![
            (Some(1), rows(&[0.0, 1.0, 0.0, 1.0])),
            (Some(2), rows(&[0.0, 1.0, 1.0, 1.0])),
            (Some(3), rows(&[0.0, 1.0, 0.0, 1.0])),
        ];
        let scores = SetScores::of("words", &ArmResults { name: "arm".to_owned(), seeds });
        let [kind] = &scores.kinds[..] else { panic!("{:?}", scores.kinds) };
        assert_eq!(
            (kind.em.error, kind.f1.error),
            (scores.scores[&Metric::Em].error, scores.scores[&Metric::F1].error)
        );
        assert!(kind.em.error > 0.0 && (kind.em.mean - scores.scores[&Metric::Em].mean).abs() < 1e-12);
        assert_eq!((kind.em.count, kind.supported.count, kind.supported.error), (12, 0, 0.0));
    }
}
