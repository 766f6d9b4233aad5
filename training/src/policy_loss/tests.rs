#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::*;
use crate::outside;

type Rows = Vec<Vec<f64>>;

#[derive(Deserialize)]
struct Vectors {
    #[serde(default)]
    verl: Vec<Verl>,
    #[serde(default)]
    low_var_kl_clamp: Clamped,
    #[serde(default)]
    trl_v0_16: Vec<Trl>,
}

#[derive(Deserialize)]
struct Verl {
    old_log_probs: Rows,
    log_probs: Rows,
    ref_log_probs: Rows,
    entropy_per_token: Rows,
    advantages: Rows,
    loss_mask: Rows,
    clip: f64,
    pg_loss: f64,
    pg_clipfrac: f64,
    ppo_kl: f64,
    kl_per_token: BTreeMap<String, Rows>,
    kl_masked_mean: BTreeMap<String, f64>,
    entropy_loss: f64,
    /// Other values, among them the loss, whose key holds the weights of its terms.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Default, Deserialize)]
struct Clamped {
    log_probs: Vec<f64>,
    ref_log_probs: Vec<f64>,
    value: Vec<f64>,
}

#[derive(Deserialize)]
struct Trl {
    beta: f64,
    loss: f64,
    mean_kl: f64,
}

impl Verl {
    /// Values of `rows` at the positions that the mask selects.
    fn masked(&self, rows: &Rows) -> Vec<f32> {
        let cells = rows.iter().flatten().zip(self.loss_mask.iter().flatten());
        cells.filter(|(_, mask)| **mask != 0.0).map(|(value, _)| *value as f32).collect()
    }

    fn means(&self, terms: PolicyLossTerms) -> LossMeans {
        let [old, new, reference, entropy, advantage] =
            [&self.old_log_probs, &self.log_probs, &self.ref_log_probs, &self.entropy_per_token, &self.advantages]
                .map(|rows| self.masked(rows));
        let inputs: Vec<LossInputs> = (0..old.len())
            .map(|i| LossInputs { old: old[i], reference: reference[i], advantage: advantage[i] })
            .collect();
        let mut loss = PolicyLoss::new(terms, &inputs, 1.0 / inputs.len() as f64);
        // The slopes are not needed: the call adds the target to the sums.
        for (target, (&logprob, &entropy)) in new.iter().zip(&entropy).enumerate() {
            loss.slope(target, Score { logprob, entropy });
        }
        loss.sums().means(&terms)
    }
}

fn kind(name: &str) -> KlEstimator {
    match name {
        "kl" => KlEstimator::K1,
        "abs" => KlEstimator::Absolute,
        "mse" => KlEstimator::K2,
        "low_var_kl" => KlEstimator::K3,
        other => panic!("no divergence is called {other}"),
    }
}

#[track_caller]
fn close(found: f64, expected: f64) {
    // The references compute in f32, and the divergence is unbounded.
    assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{found} {expected}");
}

#[test]
fn policy_loss() {
    for Vectors { verl, low_var_kl_clamp, trl_v0_16 } in outside::vectors("policy_loss") {
        outside::require(!verl.is_empty(), format_args!("policy_loss has no cases of verl"));
        verl.iter().for_each(as_in_verl);
        // A case of TRL has the inputs of the case of verl at the same place.
        let paired = trl_v0_16.len() == verl.len();
        outside::require(paired, format_args!("policy_loss has more or fewer cases of TRL than of verl"));
        if paired {
            verl.iter().zip(&trl_v0_16).for_each(|(case, trl)| as_in_trl(case, trl));
        }
        let Clamped { log_probs, ref_log_probs, value } = low_var_kl_clamp;
        outside::require(!value.is_empty(), format_args!("policy_loss has no bounded divergences"));
        for ((new, reference), expected) in log_probs.iter().zip(&ref_log_probs).zip(value) {
            close(KlEstimator::K3.of(*new, *reference).0, expected);
        }
    }
}

fn as_in_verl(case: &Verl) {
    let terms = PolicyLossTerms { clip: case.clip, ..PolicyLossTerms::default() };
    let means = case.means(terms);
    close(means.policy, case.pg_loss);
    close(means.clip_fraction, case.pg_clipfrac);
    close(means.drift, case.ppo_kl);
    close(means.entropy, case.entropy_loss);
    for (weights, expected) in outside::by_parameter(&case.rest, "total_loss_entropy") {
        let (entropy, kl) = weights.split_once("_kl").unwrap();
        let terms = PolicyLossTerms { entropy: entropy.parse().unwrap(), kl: kl.parse().unwrap(), ..terms };
        close(case.means(terms).loss, expected.as_f64().unwrap());
    }
    assert!(!case.kl_masked_mean.is_empty() && !case.kl_per_token.is_empty());
    for (name, expected) in &case.kl_masked_mean {
        close(case.means(PolicyLossTerms { divergence: kind(name), ..terms }).kl, *expected);
    }
    for (name, expected) in &case.kl_per_token {
        let cells = case.log_probs.iter().flatten().zip(case.ref_log_probs.iter().flatten());
        for ((new, reference), expected) in cells.zip(expected.iter().flatten()) {
            close(kind(name).of(*new, *reference).0, *expected);
        }
    }
}

fn as_in_trl(case: &Verl, trl: &Trl) {
    // TRL does not bound the divergence, and its loss has no entropy bonus.
    let terms = PolicyLossTerms { clip: case.clip, kl: trl.beta, divergence: KlEstimator::K3Unbounded, entropy: 0.0 };
    let means = case.means(terms);
    close(means.loss, trl.loss);
    close(means.kl, trl.mean_kl);
}

/// Scaled loss of one target.
fn value(terms: PolicyLossTerms, input: LossInputs, scale: f64, score: Score) -> f64 {
    let inputs = [input];
    let mut loss = PolicyLoss::new(terms, &inputs, scale);
    loss.slope(0, score);
    scale * loss.sums().means(&terms).loss
}

proptest! {
    /// The slopes equal finite differences of the loss, except at the kinks of the clip and of the bound.
    #[test]
    fn slopes_match_finite_differences(
        logprob in -6.0f32..-0.01,
        entropy in 0.0f32..5.0,
        old in -1.0f32..1.0,
        reference in -4.0f32..4.0,
        advantage in -2.0f32..2.0,
        clip in 0.1f64..0.4,
        kl in 0.0f64..0.5,
        beta in 0.0f64..0.1,
        scale in 0.01f64..1.0,
        kind in prop::sample::select(vec![
            KlEstimator::K1, KlEstimator::Absolute, KlEstimator::K2, KlEstimator::K3, KlEstimator::K3Unbounded,
        ]),
    ) {
        const STEP: f32 = 1.0 / 256.0;
        let terms = PolicyLossTerms { clip, kl, divergence: kind, entropy: beta };
        let input = LossInputs { old: logprob + old, reference: logprob + reference, advantage };
        let ratio = f64::from(-old).exp();
        let room = 2.0 * f64::from(STEP);
        // Kinks are at the ratios 1 ± clip, at equal probabilities, and at the bound of K3.
        prop_assume!((ratio.ln() - (1.0 - clip).ln()).abs() > room && (ratio.ln() - (1.0 + clip).ln()).abs() > room);
        prop_assume!(reference.abs() > 2.0 * STEP);
        let bound = kind.of(f64::from(logprob) + room, f64::from(logprob + reference)).1 == 0.0;
        prop_assume!(kind != KlEstimator::K3 || bound == (kind.of(f64::from(logprob) - room, f64::from(logprob + reference)).1 == 0.0));
        let at = |d: f32, e: f32| value(terms, input, scale, Score { logprob: logprob + d, entropy: entropy + e });
        // Rounding of f32 changes the steps, so the actual ones are used.
        let up = logprob + STEP;
        let down = logprob - STEP;
        let by_logprob = (at(STEP, 0.0) - at(-STEP, 0.0)) / f64::from(up - down);
        let more = entropy + STEP;
        let less = entropy - STEP;
        let by_entropy = (at(0.0, STEP) - at(0.0, -STEP)) / f64::from(more - less);
        let inputs = [input];
        let slope = PolicyLoss::new(terms, &inputs, scale).slope(0, Score { logprob, entropy });
        let near = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 1e-3 * (1.0 + expected.abs());
        prop_assert!(near(slope.logprob, by_logprob), "{} {by_logprob}", slope.logprob);
        prop_assert!(near(slope.entropy, by_entropy), "{} {by_entropy}", slope.entropy);
    }

    /// The sums of packs add up to those of their micro-batch.
    #[test]
    fn sums_of_parts_are_the_sum(values in prop::collection::vec((-3.0f32..0.0, -3.0f32..0.0, -1.0f32..1.0), 1..20), cut in 0usize..20) {
        let terms = PolicyLossTerms::default();
        let inputs: Vec<LossInputs> = values.iter().map(|&(old, _, advantage)| LossInputs { old, reference: old, advantage }).collect();
        let ask = |range: std::ops::Range<usize>| {
            let mut loss = PolicyLoss::new(terms, &inputs[range.clone()], 0.5);
            for (target, (_, logprob, _)) in values[range].iter().enumerate() {
                loss.slope(target, Score { logprob: *logprob, entropy: 1.0 });
            }
            loss.sums()
        };
        let cut = cut.min(values.len());
        let all = ask(0..values.len());
        let mut parts = ask(0..cut);
        parts.add(&ask(cut..values.len()));
        prop_assert_eq!(all.targets, parts.targets);
        prop_assert!((all.policy - parts.policy).abs() < 1e-9 && (all.kl - parts.kl).abs() < 1e-9);
    }
}
