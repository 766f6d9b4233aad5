//! Endpoints: the metric of an episode, differences between arms, and the bar.

use std::fmt;

use serde::{Deserialize, Serialize};
use waymark_agent::metric::normalize;
use waymark_runtime::evaluate::{EpisodeRow, Interval, Question};

use super::error::ExperimentError;
use super::file::{Endpoint, Experiment};
use super::results::ArmResults;

/// A metric of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Exact match.
    Em,
    /// F1 of the answer.
    F1,
    /// F1 as R1-Searcher and GraphRAG-R1 compute it.
    SearcherF1,
    /// ACC_R: the answer has every word of an accepted one.
    AccR,
    /// SBERT similarity.
    Similarity,
    /// SF-F1, over questions with known support.
    SupportF1,
    /// Unsupported answer rate, over answers with words. Less is better.
    Uar,
    /// Share of episodes that kept the protocol's format.
    Valid,
    /// Number of the policy's turns.
    Steps,
    /// Number of searches.
    Searches,
    /// Number of searches that repeat an earlier one. Less is better.
    Duplicates,
    /// R1-Searcher's F1 per search. An episode without searches counts as one with a single search.
    SearcherF1PerSearch,
    /// Cost of the searches.
    Cost,
    /// Number of tokens that the model wrote.
    ThinkingTokens,
    /// Number of tokens of evidence.
    ContentTokens,
    /// Share of answers among questions whose support was not retrieved. Less is better.
    FalseAnswers,
    /// Share of refusals among questions whose support was retrieved. Less is better.
    FalseRefusals,
}

impl Metric {
    /// Metrics in the tables of a report.
    pub const SHOWN: [Metric; 9] = [
        Metric::Em,
        Metric::F1,
        Metric::SupportF1,
        Metric::Uar,
        Metric::Valid,
        Metric::Searches,
        Metric::Cost,
        Metric::ThinkingTokens,
        Metric::ContentTokens,
    ];

    /// Returns the value for an episode. `None` where the metric is undefined: a failed episode counts as wrong, but
    /// has no turns, searches, cost or tokens.
    pub fn of(self, row: &EpisodeRow) -> Option<f64> {
        // The row of a failed episode has zeros, with which failing would look cheap.
        if row.error.is_some() && self.measures_work() {
            return None;
        }
        let share = |holds: bool| f64::from(u8::from(holds));
        Some(match self {
            Metric::Em => row.em,
            Metric::F1 => row.f1,
            Metric::SearcherF1 => row.searcher_f1,
            Metric::AccR => row.covers,
            Metric::Similarity => return row.similarity,
            Metric::SupportF1 => return row.support_f1,
            Metric::Uar => return row.unsupported,
            Metric::Valid => share(row.valid),
            Metric::Steps => row.turns as f64,
            Metric::Searches => row.evidence.len() as f64,
            Metric::Duplicates => row.duplicates as f64,
            Metric::SearcherF1PerSearch => row.searcher_f1 / row.evidence.len().max(1) as f64,
            Metric::Cost => row.cost,
            Metric::ThinkingTokens => (row.tokens.sampled + row.tokens.forced) as f64,
            Metric::ContentTokens => row.tokens.content() as f64,
            Metric::FalseAnswers => return (row.supported == Some(false)).then(|| share(!row.refused)),
            Metric::FalseRefusals => return (row.supported == Some(true)).then(|| share(row.refused)),
        })
    }

    /// Returns `true` if the metric measures the work of an episode, and not its answer.
    fn measures_work(self) -> bool {
        matches!(
            self,
            Metric::Steps
                | Metric::Searches
                | Metric::Duplicates
                | Metric::Cost
                | Metric::ThinkingTokens
                | Metric::ContentTokens
        )
    }

    /// Returns the reason why the metric has no value for any episode about these questions. `None` if an episode may
    /// have one: whether it has then depends on its answer and its searches.
    pub(super) fn undefined_on(self, questions: &[Question]) -> Option<&'static str> {
        let none = |holds: fn(&Question) -> bool| !questions.iter().any(holds);
        match self {
            Metric::SupportF1 if none(Question::lists_support) => {
                Some("no question lists all of its supporting passages (`supporting`)")
            }
            Metric::FalseAnswers | Metric::FalseRefusals if none(tells_support) => Some(
                "no question lists all of its supporting passages (`supporting`) or has another answer than yes or no",
            ),
            Metric::FalseRefusals if none(may_be_supported) => Some("the passages of all questions are withheld"),
            // Any answer has a value, or any episode.
            _ => None,
        }
    }

    /// Formats a value, shares in percent.
    pub fn show(self, value: f64) -> String {
        match self {
            Metric::ThinkingTokens | Metric::ContentTokens => format!("{value:.0}"),
            Metric::Steps | Metric::Searches | Metric::Duplicates | Metric::Cost => format!("{value:.2}"),
            _ => format!("{:.1}", value * 100.0),
        }
    }

    /// Formats a difference with its sign.
    pub fn show_difference(self, value: f64) -> String {
        // Formatted without its sign, so that a negative zero reads "+0.0".
        let shown = self.show(value.abs());
        if value < 0.0 { format!("-{shown}") } else { format!("+{shown}") }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Metric::Em => "EM",
            Metric::F1 => "F1",
            Metric::SearcherF1 => "RS-F1",
            Metric::AccR => "ACC_R",
            Metric::Similarity => "SBERT",
            Metric::SupportF1 => "SF-F1",
            Metric::Uar => "UAR",
            Metric::Valid => "valid",
            Metric::Steps => "steps",
            Metric::Searches => "searches",
            Metric::Duplicates => "duplicates",
            Metric::SearcherF1PerSearch => "RS-F1 per search",
            Metric::Cost => "cost",
            Metric::ThinkingTokens => "thinking tokens",
            Metric::ContentTokens => "content tokens",
            Metric::FalseAnswers => "false answers",
            Metric::FalseRefusals => "false refusals",
        })
    }
}

/// Returns `true` if an accepted answer can be found in a passage.
fn has_words(question: &Question) -> bool {
    question.answers.iter().any(|answer| !matches!(normalize(answer).as_str(), "" | "yes" | "no"))
}

/// Returns `true` if [`EpisodeRow::supported`] is known after an episode.
fn tells_support(question: &Question) -> bool {
    question.lists_support() || has_words(question)
}

/// Returns `true` if an episode may find the support of a question.
fn may_be_supported(question: &Question) -> bool {
    if !question.lists_support() {
        return has_words(question);
    }
    question.supporting.iter().all(|id| !question.without.contains(id))
}

/// Outcome of an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointOutcome {
    /// The endpoint, as it was written before the run.
    pub endpoint: Endpoint,
    /// Names of the evaluation sets.
    pub sets: Vec<String>,
    /// Difference between the arms: the mean over sets of the mean over seeds and questions. `None` if the metric is
    /// undefined for all questions of a set: then no bar is passed.
    pub difference: Option<f64>,
    /// Bootstrap interval of the difference, over seeds and questions. `None` if the metric is undefined for all questions
    /// of a seed: then no bar that looks at the interval is passed.
    pub interval: Option<Interval>,
    /// Number of questions with a value in both arms.
    pub questions: usize,
    /// Differences by seed, in the order of the seeds. Undefined ones are `None`.
    pub by_seed: Vec<Option<f64>>,
    /// If `true`, the difference passed the bar.
    pub passed: bool,
}

impl EndpointOutcome {
    /// Compares two arms.
    ///
    /// # Errors
    /// If an arm of the endpoint has no results, or the arms answered different questions.
    pub(super) fn of(
        experiment: &Experiment,
        endpoint: &Endpoint,
        results: &[ArmResults],
    ) -> Result<EndpointOutcome, ExperimentError> {
        let sets = experiment.sets_of(endpoint);
        let arm = ArmResults::named(results, &endpoint.arm)?;
        let against = ArmResults::named(results, &endpoint.against)?;
        let metric = endpoint.metric;
        let strata = sets.iter().map(|set| arm.differences(against, set, metric)).collect::<Result<Vec<_>, _>>()?;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let known = |values: &[Option<f64>]| values.iter().copied().flatten().collect::<Vec<f64>>();
        let seeds = strata.iter().map(Vec::len).max().unwrap_or(0);
        let by_seed = (0..seeds).map(|seed| {
            let sets: Vec<Vec<f64>> = strata.iter().map(|set| known(&set[seed])).collect();
            let sets: Vec<f64> = sets.iter().filter(|set| !set.is_empty()).map(|set| mean(set)).collect();
            (!sets.is_empty()).then(|| mean(&sets))
        });
        let by_seed: Vec<Option<f64>> = by_seed.collect();
        // Seeds are pooled within a set, and then each set counts alike, however many questions it has.
        let of_set = |set: &Vec<Vec<Option<f64>>>| {
            let values = known(&set.concat());
            (!values.is_empty()).then(|| mean(&values))
        };
        let difference = strata.iter().map(of_set).collect::<Option<Vec<f64>>>().map(|sets| mean(&sets));
        let interval = Interval::of_seeds(&strata);
        Ok(EndpointOutcome {
            endpoint: endpoint.clone(),
            sets: sets.into_iter().map(str::to_owned).collect(),
            difference,
            interval,
            questions: strata.iter().map(|set| set.iter().map(|seed| known(seed).len()).max().unwrap_or(0)).sum(),
            by_seed,
            passed: passes(endpoint, difference, interval),
        })
    }

    /// Returns the difference in words.
    pub fn show_difference(&self) -> String {
        let metric = self.endpoint.metric;
        self.difference.map_or_else(
            || "unknown, because a set has no question with a value in both arms".to_owned(),
            |difference| metric.show_difference(difference),
        )
    }

    /// Returns the interval in words.
    pub fn show_interval(&self) -> String {
        let metric = self.endpoint.metric;
        self.interval.map_or_else(
            || "unknown, because a seed has no value".to_owned(),
            |Interval { low, high }| format!("{} to {}", metric.show_difference(low), metric.show_difference(high)),
        )
    }
}

/// Returns `true` if a difference passes the bar of its endpoint.
fn passes(endpoint: &Endpoint, difference: Option<f64>, interval: Option<Interval>) -> bool {
    let mean = difference.map(|difference| Interval { low: difference, high: difference });
    let judged = if endpoint.interval { mean.and(interval) } else { mean };
    let Some(Interval { low, high }) = judged else { return false };
    endpoint.at_least.is_none_or(|bar| low >= bar) && endpoint.at_most.is_none_or(|bar| high <= bar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_look_at_the_mean_or_at_the_whole_interval() {
        let endpoint = |at_least, at_most, interval| Endpoint {
            metric: Metric::Em,
            arm: "a".to_owned(),
            against: "b".to_owned(),
            sets: Vec::new(),
            at_least,
            at_most,
            interval,
        };
        let interval = Interval { low: -0.01, high: 0.03 };
        for (endpoint, passed) in [
            (endpoint(Some(0.0), None, false), true),
            (endpoint(Some(0.0), None, true), false),
            (endpoint(Some(-0.01), None, true), true),
            (endpoint(None, Some(0.02), false), true),
            (endpoint(None, Some(0.02), true), false),
            (endpoint(None, Some(0.0), false), false),
        ] {
            assert_eq!(passes(&endpoint, Some(0.01), Some(interval)), passed, "{endpoint:?}");
        }
        assert!(
            !passes(&endpoint(None, Some(0.0), true), Some(-0.1), None),
            "an interval that is not known passes no bar"
        );
        for looks_at_interval in [false, true] {
            let endpoint = endpoint(Some(-1.0), None, looks_at_interval);
            assert!(!passes(&endpoint, None, Some(interval)), "a difference that is not known passes no bar");
        }
    }

    #[test]
    fn metrics_that_no_episode_can_have_are_known_before_it() {
        let question = |answer: &str, supporting: &[&str], without: &[&str]| Question {
            answers: vec![answer.to_owned()],
            supporting: supporting.iter().map(|id| (*id).to_owned()).collect(),
            supporting_complete: true,
            without: without.iter().map(|id| (*id).to_owned()).collect(),
            ..Question::default()
        };
        let plain = question("Paris", &[], &[]);
        let judged = question("Yes.", &[], &[]);
        let supported = question("Yes.", &["a", "b"], &["c"]);
        let withheld = question("Paris", &["a", "b"], &["b"]);
        let partly = Question { supporting_complete: false, ..supported.clone() };
        let metrics = [Metric::SupportF1, Metric::FalseAnswers, Metric::FalseRefusals, Metric::Uar, Metric::Em];
        for (questions, undefined) in [
            (vec![plain.clone()], [true, false, false]),
            (vec![judged.clone(), partly], [true, true, true]),
            (vec![judged, supported], [false, false, false]),
            (vec![withheld.clone(), withheld.clone()], [false, false, true]),
            (vec![withheld, plain], [false, false, false]),
        ] {
            let found = metrics.map(|metric| metric.undefined_on(&questions).is_some());
            assert_eq!((&found[..3], &found[3..]), (&undefined[..], &[false, false][..]), "{questions:?}");
        }
    }

    /// Otherwise a bar from above would be the easier to pass, the more episodes fail.
    #[test]
    fn failed_episodes_are_wrong_and_not_cheap() {
        let failed = EpisodeRow { error: Some("too long".to_owned()), ..EpisodeRow::default() };
        for metric in [
            Metric::Steps,
            Metric::Searches,
            Metric::Duplicates,
            Metric::Cost,
            Metric::ThinkingTokens,
            Metric::ContentTokens,
        ] {
            assert_eq!((metric.of(&failed), metric.of(&EpisodeRow::default())), (None, Some(0.0)), "{metric}");
        }
        for metric in [Metric::Em, Metric::F1, Metric::SearcherF1, Metric::AccR, Metric::Valid] {
            assert_eq!(metric.of(&failed), Some(0.0), "{metric}");
        }
    }

    #[test]
    fn undefined_values_are_left_out() {
        let row = EpisodeRow { supported: Some(true), refused: true, ..EpisodeRow::default() };
        assert_eq!((Metric::FalseRefusals.of(&row), Metric::FalseAnswers.of(&row)), (Some(1.0), None));
        assert_eq!((Metric::SupportF1.of(&row), Metric::Em.of(&row)), (None, Some(0.0)));
        assert_eq!(
            (Metric::Em.show_difference(-0.012), Metric::Cost.show_difference(0.5)),
            ("-1.2".into(), "+0.50".into())
        );
    }
}
