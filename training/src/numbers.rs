//! The numbers of a step's rollouts.

use waymark::engine::Origin;
use waymark::evaluate::{self, Searches};

use crate::rollout::{Field, Rollout};
use crate::run::Row;

/// Adds what the rollouts of a step tell: answers, form, searches and lengths, as means over trajectories.
pub(crate) fn rollouts(row: Row, rollouts: &[Rollout]) -> Row {
    let tokens = |origin: Origin| mean(rollouts, |rollout| rollout.sample.count(origin) as f64);
    let (policy, observed) = (tokens(Origin::Policy), tokens(Origin::Environment));
    let reward = |rollout: &Rollout| rollout.sample.reward.as_ref().map_or(0.0, |reward| reward.total);
    let searches = |rollout: &Rollout| {
        let Searches { passage, graph, hybrid, triples, kag, .. } = rollout.row.searches;
        (passage + graph + hybrid + triples + kag) as f64
    };
    rated(row.with("reward", mean(rollouts, reward)), "", rollouts)
        .with("searches", mean(rollouts, searches))
        .with("prompt_tokens", mean(rollouts, |rollout| rollout.sample.prompt_tokens as f64))
        .with("policy_tokens", policy)
        .with("observation_tokens", observed)
        .with("response_tokens", policy + observed)
}

/// Adds what evaluation says of the rollouts, named by `prefix`.
fn rated(mut row: Row, prefix: &str, rollouts: &[Rollout]) -> Row {
    let share = |holds: bool| f64::from(u8::from(holds));
    let rated: [(&str, Number<'_>); 11] = [
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
        ("retrieval_cost", &|row| row.cost),
    ];
    for (name, value) in rated {
        row = row.with(format!("{prefix}{name}"), mean(rollouts, |rollout| value(&rollout.row)));
    }
    row
}

/// What is read of an episode.
type Number<'a> = &'a dyn Fn(&evaluate::Row) -> f64;

/// The mean over trajectories.
fn mean(rollouts: &[Rollout], value: impl Fn(&Rollout) -> f64) -> f64 {
    // The sum of nothing is −0, and would be shown as such.
    rollouts.iter().map(value).sum::<f64>() / rollouts.len().max(1) as f64 + 0.0
}

/// Adds what the questions that each field is measured with say of the policy as it is served; `rollouts` are those of all
/// fields, in their order.
pub(crate) fn served(mut row: Row, fields: &[Field], mut rollouts: &[Rollout]) -> Row {
    for field in fields.iter().filter(|field| !field.validation.is_empty()) {
        let (own, others) = rollouts.split_at(field.validation.len());
        row = rated(row, &format!("{}/", field.name), own);
        rollouts = others;
    }
    row
}

/// Adds how far rewards differ within groups, and how many groups have nothing to teach.
pub(crate) fn groups(row: Row, groups: &[usize], rewards: &[f64]) -> Row {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&place| groups[place]);
    let (mut deviations, mut flat, mut count) = (0.0, 0, 0usize);
    for members in order.chunk_by(|&a, &b| groups[a] == groups[b]) {
        let mean = members.iter().map(|&place| rewards[place]).sum::<f64>() / members.len() as f64;
        let squares: f64 = members.iter().map(|&place| (rewards[place] - mean).powi(2)).sum();
        deviations += (squares / (members.len() - 1).max(1) as f64).sqrt();
        flat += usize::from(is_flat(members.iter().map(|&place| rewards[place])));
        count += 1;
    }
    let count = count.max(1) as f64;
    row.with("reward_std", deviations / count).with("flat_groups", flat as f64 / count)
}

/// Whether all rewards of a group are the same.
pub(crate) fn is_flat(mut rewards: impl Iterator<Item = f64>) -> bool {
    let first = rewards.next();
    rewards.all(|reward| Some(reward) == first)
}

/// Adds how far the learner's log-probabilities are from those at sampling time: mean and largest absolute difference, in
/// nats, over the tokens that were sampled.
pub(crate) fn drift(row: Row, rollouts: &[&Rollout], recomputed: &[Vec<f32>]) -> Row {
    let (mut sum, mut most, mut count) = (0.0, 0.0f64, 0usize);
    for (rollout, recomputed) in rollouts.iter().zip(recomputed) {
        let (mask, sampled) = (rollout.sample.loss_mask(), rollout.sample.sampled_logprobs());
        for ((&learnt, sampled), &own) in mask.iter().zip(sampled).zip(recomputed) {
            if let (true, Some(sampled)) = (learnt, sampled) {
                let distance = f64::from((sampled - own).abs());
                (sum, most, count) = (sum + distance, most.max(distance), count + 1);
            }
        }
    }
    row.with("logprob_drift", sum / count.max(1) as f64).with("logprob_drift_max", most)
}
