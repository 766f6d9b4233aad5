//! Rows with a mask, penalties or a bias, sampled on the emulator.

use super::pair::DecoderPair;
use crate::batch::LogitPositions;
use crate::cuda::toy::{self, qwen3};
use crate::sampler::{AdjustedToken, LogitAdjustment, Pick, Sampler, SamplingParams, TokenMask};

#[test]
fn constrained_rows_sample_the_tokens_of_the_cpu_sampler() {
    let weights = toy::open(&qwen3());
    let vocab = weights.config().vocab;
    let Some(mut pair) = DecoderPair::new(&weights, 8) else { return };
    let params = SamplingParams { seed: 11, top_p: 0.95, ..SamplingParams::default() };
    let penalized = SamplingParams {
        repetition_penalty: 1.4,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        logit_bias: vec![(3, 2.0), (5, -1.0)],
        ..params.clone()
    };
    let even: Vec<u32> = (0..vocab as u32).step_by(2).collect();
    let even = TokenMask::of(&even, vocab);
    let one = TokenMask::of(&[7], vocab);
    let cases = [
        (params.clone(), Some(even.clone())),
        (penalized.clone(), None),
        (penalized, Some(even)),
        (SamplingParams::greedy(), Some(one)),
    ];
    let mut samplers = cases.clone().map(|(params, _)| (Sampler::new(params.clone()), Sampler::new(params)));
    // The same tokens in every row, so the first row has the logits of the others before their adjustment.
    let rows = [0; 5].map(|_| pair.begin(1, None));
    let mut histories = [const { Vec::new() }; 4];
    for round in 0..6 {
        let count = if round == 0 { 9 } else { 1 };
        let batch = pair.batch(&rows.map(|row| (row, count, LogitPositions::Last)));
        let instruct = |case: usize| {
            let mask = cases[case].1.clone();
            samplers[case].0.pick_adjusted(&histories[case], &[], mask, vocab)
        };
        let mut picks = vec![None];
        picks.extend((0..4).map(instruct));
        assert!(picks[1..].iter().flatten().all(|pick| pick.adjustment.is_some()), "{picks:?}");
        let outcome = pair.step(&batch, &picks);
        assert!(outcome.step.adjusted > 0 && outcome.sampled[0].is_none());
        for (case, history) in histories.iter_mut().enumerate() {
            let sampler = &mut samplers[case].1;
            let wanted = match &cases[case].1 {
                Some(mask) => sampler.sample_within(&outcome.found[0], history, mask),
                None => sampler.sample(&outcome.found[0], history, None),
            };
            let wanted = wanted.unwrap();
            let found = outcome.sampled[case + 1].clone().unwrap().unwrap();
            assert_eq!(found.id, wanted.id, "case {case}, round {round}");
            assert!((found.logprob - wanted.logprob).abs() < 1e-4, "{} or {}", found.logprob, wanted.logprob);
            history.push(found.id);
            samplers[case].0.picked();
        }
    }
    pair.untouched();
}

#[test]
fn a_list_that_is_too_long_is_left_to_the_host() {
    let Some(mut pair) = DecoderPair::new(&toy::open(&qwen3()), 9) else { return };
    let mut sampler = Sampler::new(SamplingParams { presence_penalty: 0.1, ..SamplingParams::default() });
    let short = sampler.pick_adjusted(&[1, 2], &[], None, 20).unwrap();
    let token = AdjustedToken { id: 1, count: 1, bias: 0.0 };
    let tokens = vec![token; LogitAdjustment::MAX_TOKENS + 1];
    let long = LogitAdjustment { tokens, ..LogitAdjustment::clone(short.adjustment.as_ref().unwrap()) };
    let long = Pick { adjustment: Some(long.into()), ..short.clone() };
    let rows = [0; 2].map(|_| pair.begin(1, None));
    let batch = pair.batch(&rows.map(|row| (row, 1, LogitPositions::Last)));
    let outcome = pair.step(&batch, &[Some(long), Some(short)]);
    assert!(outcome.sampled[0].is_none() && outcome.sampled[1].is_some());
}
