//! The numbers of a step's rollouts.

use waymark::engine::Origin;

use crate::rollout::{Field, Rollout};
use crate::run::Row;

/// Adds what the rollouts of a step tell: answers, form, searches and lengths, as means over trajectories.
pub(crate) fn rollouts(row: Row, rollouts: &[Rollout]) -> Row {
    // The sum of nothing is −0, and would be shown as such.
    let mean =
        |value: &dyn Fn(&Rollout) -> f64| rollouts.iter().map(value).sum::<f64>() / rollouts.len().max(1) as f64 + 0.0;
    let tokens = |origin: Origin| mean(&|rollout| rollout.sample.count(origin) as f64);
    let (policy, observed) = (tokens(Origin::Policy), tokens(Origin::Environment));
    let searches = |rollout: &Rollout| {
        let made = rollout.row.searches;
        (made.passage + made.graph + made.hybrid + made.triples + made.kag) as f64
    };
    let answered = |rollout: &Rollout| rollout.row.answer.as_ref().is_some_and(|answer| !answer.trim().is_empty());
    row.with("reward", mean(&|rollout| rollout.sample.reward.as_ref().map_or(0.0, |reward| reward.total)))
        .with("em", mean(&|rollout| rollout.row.em))
        .with("f1", mean(&|rollout| rollout.row.f1))
        .with("format_valid", mean(&|rollout| f64::from(u8::from(rollout.row.valid))))
        .with("answered", mean(&|rollout| f64::from(u8::from(answered(rollout)))))
        .with("searches", mean(&searches))
        .with("searches_passage", mean(&|rollout| rollout.row.searches.passage as f64))
        .with("searches_graph", mean(&|rollout| rollout.row.searches.graph as f64))
        .with("searches_hybrid", mean(&|rollout| rollout.row.searches.hybrid as f64))
        .with("searches_triples", mean(&|rollout| rollout.row.searches.triples as f64))
        .with("searches_kag", mean(&|rollout| rollout.row.searches.kag as f64))
        .with("turns", mean(&|rollout| rollout.row.turns as f64))
        .with("retrieval_cost", mean(&|rollout| rollout.row.cost))
        .with("prompt_tokens", mean(&|rollout| rollout.sample.prompt_tokens as f64))
        .with("policy_tokens", policy)
        .with("observation_tokens", observed)
        .with("response_tokens", policy + observed)
}

/// Adds what the questions that each field is measured with say of the policy as it is served; `rollouts` are those of all
/// fields, in their order.
pub(crate) fn served(mut row: Row, fields: &[Field], mut rollouts: &[Rollout]) -> Row {
    for field in fields.iter().filter(|field| !field.validation.is_empty()) {
        let (own, others) = rollouts.split_at(field.validation.len());
        row = measured(row, &field.name, own);
        rollouts = others;
    }
    row
}

/// Adds what the questions of `field` say of the policy as it is served, named `field/…`.
fn measured(row: Row, field: &str, rollouts: &[Rollout]) -> Row {
    let mean =
        |value: &dyn Fn(&Rollout) -> f64| rollouts.iter().map(value).sum::<f64>() / rollouts.len().max(1) as f64 + 0.0;
    row.with(format!("{field}/em"), mean(&|rollout| rollout.row.em))
        .with(format!("{field}/f1"), mean(&|rollout| rollout.row.f1))
        .with(format!("{field}/format_valid"), mean(&|rollout| f64::from(u8::from(rollout.row.valid))))
        .with(format!("{field}/turns"), mean(&|rollout| rollout.row.turns as f64))
        .with(format!("{field}/searches_passage"), mean(&|rollout| rollout.row.searches.passage as f64))
        .with(format!("{field}/searches_graph"), mean(&|rollout| rollout.row.searches.graph as f64))
        .with(format!("{field}/searches_hybrid"), mean(&|rollout| rollout.row.searches.hybrid as f64))
        .with(format!("{field}/retrieval_cost"), mean(&|rollout| rollout.row.cost))
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
