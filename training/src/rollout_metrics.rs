//! Metrics of a training step, computed from its rollouts.

use waymark_engine::Origin;
use waymark_runtime::evaluate::{self, SearchCounts};

use crate::rollout::{QuestionSet, Rollout};
use crate::run::MetricsRow;

/// Adds the metrics of a step's rollouts (answers, format, searches and lengths) as means over trajectories.
pub(crate) fn add_rollouts(row: MetricsRow, rollouts: &[Rollout]) -> MetricsRow {
    let tokens = |origin: Origin| mean(rollouts, |rollout| rollout.sample.count(origin) as f64);
    let policy = tokens(Origin::Policy);
    let observed = tokens(Origin::Environment);
    let reward = |rollout: &Rollout| rollout.sample.reward.as_ref().map_or(0.0, |reward| reward.total);
    let searches = |rollout: &Rollout| {
        let SearchCounts { passage, graph, hybrid, triples, kag, hypergraph, .. } = rollout.row.searches;
        (passage + graph + hybrid + triples + kag + hypergraph) as f64
    };
    add_evaluation(row.with("reward", mean(rollouts, reward)), "", rollouts)
        .with("searches", mean(rollouts, searches))
        .with("prompt_tokens", mean(rollouts, |rollout| rollout.sample.prompt_tokens as f64))
        .with("policy_tokens", policy)
        .with("observation_tokens", observed)
        .with("response_tokens", policy + observed)
}

/// Adds the evaluation metrics of the rollouts; each name starts with `prefix`.
fn add_evaluation(mut row: MetricsRow, prefix: &str, rollouts: &[Rollout]) -> MetricsRow {
    let share = |holds: bool| f64::from(u8::from(holds));
    let rated: [(&str, Number<'_>); 12] = [
        ("em", &|row| row.em),
        ("f1", &|row| row.f1),
        ("format_valid", &|row| share(row.valid)),
        ("answered", &|row| share(row.answer.as_ref().is_some_and(|answer| !answer.trim().is_empty()))),
        ("turns", &|row| row.turns as f64),
        ("searches_passage", &|row| row.searches.passage as f64),
        ("searches_graph", &|row| row.searches.graph as f64),
        ("searches_hybrid", &|row| row.searches.hybrid as f64),
        ("searches_triples", &|row| row.searches.triples as f64),
        ("searches_kag", &|row| row.searches.kag as f64),
        ("searches_hypergraph", &|row| row.searches.hypergraph as f64),
        ("retrieval_cost", &|row| row.cost),
    ];
    for (name, value) in rated {
        row = row.with(format!("{prefix}{name}"), mean(rollouts, |rollout| value(&rollout.row)));
    }
    row
}

/// A metric of one episode.
type Number<'a> = &'a dyn Fn(&evaluate::EpisodeRow) -> f64;

/// Mean of `value` over all rollouts.
fn mean(rollouts: &[Rollout], value: impl Fn(&Rollout) -> f64) -> f64 {
    // The empty sum of `f64` is −0 in Rust; adding 0 keeps it from being shown as "-0".
    rollouts.iter().map(value).sum::<f64>() / rollouts.len().max(1) as f64 + 0.0
}

/// Adds the validation metrics of the policy, separately for each question set. `rollouts` holds one rollout per
/// validation question of all `question_sets`, in their order.
pub(crate) fn add_validation(
    mut row: MetricsRow,
    question_sets: &[QuestionSet],
    mut rollouts: &[Rollout],
) -> MetricsRow {
    for set in question_sets.iter().filter(|set| !set.validation.is_empty()) {
        let (own, others) = rollouts.split_at(set.validation.len());
        row = add_evaluation(row, &format!("{}/", set.name), own);
        rollouts = others;
    }
    row
}

/// Adds the mean standard deviation of rewards within groups, and the share of groups whose rewards are all equal:
/// their advantages are zero, so they teach nothing.
pub(crate) fn add_groups(row: MetricsRow, groups: &[usize], rewards: &[f64]) -> MetricsRow {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&index| groups[index]);
    let mut deviations = 0.0;
    let mut flat = 0;
    let mut count = 0usize;
    for members in order.chunk_by(|&a, &b| groups[a] == groups[b]) {
        let mean = members.iter().map(|&index| rewards[index]).sum::<f64>() / members.len() as f64;
        let squares: f64 = members.iter().map(|&index| (rewards[index] - mean).powi(2)).sum();
        // The unbiased estimate, as in the advantages; `max(1)` for groups of one.
        deviations += (squares / (members.len() - 1).max(1) as f64).sqrt();
        flat += usize::from(is_flat(members.iter().map(|&index| rewards[index])));
        count += 1;
    }
    let count = count.max(1) as f64;
    row.with("reward_std", deviations / count).with("flat_groups", flat as f64 / count)
}

/// Returns `true` if all rewards of a group are equal.
pub(crate) fn is_flat(mut rewards: impl Iterator<Item = f64>) -> bool {
    let first = rewards.next();
    rewards.all(|reward| Some(reward) == first)
}

/// Adds the difference between the learner's log-probabilities and those recorded at sampling time: mean and largest
/// absolute difference, in nats, over the sampled tokens.
pub(crate) fn add_drift(row: MetricsRow, rollouts: &[&Rollout], recomputed: &[Vec<f32>]) -> MetricsRow {
    let mut sum = 0.0;
    let mut largest = 0.0f64;
    let mut count = 0usize;
    for (rollout, recomputed) in rollouts.iter().zip(recomputed) {
        let mask = rollout.sample.loss_mask();
        let sampled = rollout.sample.sampled_logprobs();
        for ((&learned, sampled), &own) in mask.iter().zip(sampled).zip(recomputed) {
            if let (true, Some(sampled)) = (learned, sampled) {
                let distance = f64::from((sampled - own).abs());
                sum += distance;
                largest = largest.max(distance);
                count += 1;
            }
        }
    }
    row.with("logprob_drift", sum / count.max(1) as f64).with("logprob_drift_max", largest)
}
