//! Tokens of a turn: stop strings, allow lists, forced tokens and seeds.

use std::sync::Arc;

use waymark_engine::mock::Random;
use waymark_engine::{EngineConfig, EngineError, Generate, Origin, Session, StopSet, TurnFinish};
use waymark_models::sampler::SamplingParams;

use crate::{VOCAB, greedy, ids, mock, prompt, run, session, start};

#[tokio::test]
async fn a_stop_string_ends_a_turn_across_tokens() {
    let engine = start(mock(), EngineConfig::default());
    let mut probe = session(&engine, &prompt(1, 20));
    let said: Vec<u8> = run(&mut probe, greedy(40)).await.unwrap().0.iter().map(|step| step.id as u8).collect();
    // The first string never occurs, so the end has to name the second.
    let stops = Arc::new(StopSet::new([b"\0never".as_slice(), &said[20..25]]));
    let mut again = session(&engine, &prompt(1, 20));
    let (steps, finish) = run(&mut again, Generate { stops, ..greedy(40) }).await.unwrap();
    assert_eq!((steps.len(), finish), (25, TurnFinish::Stop(1)));
    let eos = vec![u32::from(said[7])];
    // The same byte may occur before the seventh.
    let first = said.iter().position(|byte| *byte == said[7]).unwrap();
    let mut third = session(&engine, &prompt(1, 20));
    let (steps, finish) = run(&mut third, Generate { eos: eos.clone(), ..greedy(40) }).await.unwrap();
    assert_eq!((steps.len(), finish), (first + 1, TurnFinish::Eos), "the token that ends it is kept");
    let (_, finish) = run(&mut third, Generate { eos, ignore_eos: true, ..greedy(40) }).await.unwrap();
    assert_eq!(finish, TurnFinish::Length);
}

#[tokio::test]
async fn an_allow_list_binds_and_the_logprob_stays_honest() {
    let engine = start(mock().with_confidence(2.0), EngineConfig::default());
    let mut session = session(&engine, &prompt(1, 20));
    let sampling = SamplingParams { top_logprobs: 3, ..SamplingParams::default() };
    let generate = Generate { sampling, allow: Some(vec![1, 2]), max_tokens: 10, ..Generate::default() };
    let (steps, _) = run(&mut session, generate).await.unwrap();
    assert!(steps.iter().all(|step| step.id == 1 || step.id == 2));
    // 258 logits of 0 and one of 2. The tokens 1 and 2 are not printable, so neither has the logit of 2.
    let expected = -(258.0 + 2f32.exp()).ln();
    assert!(steps.iter().all(|step| (step.logprob - expected).abs() < 1e-4 && step.top.len() == 3));
    assert!(session.tokens()[20..].iter().all(|token| token.origin == Origin::Policy && !token.forced));
}

#[tokio::test]
async fn forced_tokens_are_scored_as_they_were_when_they_were_sampled() {
    let engine = start(mock().with_confidence(2.0), EngineConfig::default());
    let mut first = session(&engine, &prompt(1, 20));
    let sampled = Generate { max_tokens: 30, ..Generate::default() };
    let (steps, _) = run(&mut first, sampled).await.unwrap();
    let force: Vec<u32> = steps.iter().map(|step| step.id).collect();
    let mut again = session(&engine, &prompt(1, 20));
    let (scored, finish) = run(&mut again, Generate { force: force.clone(), ..greedy(30) }).await.unwrap();
    assert_eq!((scored, finish), (steps, TurnFinish::Length));
    assert_eq!(again.tokens(), first.tokens());
    // Sampling continues after the last forced token.
    let mut longer = session(&engine, &prompt(1, 20));
    run(&mut longer, Generate { force: force[..10].to_vec(), ..greedy(12) }).await.unwrap();
    assert_eq!(ids(&longer)[..30], ids(&first)[..30]);
    let random = Random { seed: 7, vocab: VOCAB };
    assert!((30..32).all(|at| ids(&longer)[at] == random.next(None, &ids(&longer)[..at])));
    let outside = Generate { force: vec![9999], ..greedy(5) };
    assert!(matches!(run(&mut longer, outside).await, Err(EngineError::Request(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_gives_the_same_tokens_alone_and_in_company() {
    let sample = |seed| Generate {
        sampling: SamplingParams { seed, ..SamplingParams::default() },
        max_tokens: 60,
        ..Generate::default()
    };
    let alone = start(mock().with_confidence(3.0), EngineConfig::default());
    let mut session_alone = session(&alone, &prompt(1, 50));
    run(&mut session_alone, sample(11)).await.unwrap();
    let config = EngineConfig { step_tokens: 24, max_batch_rows: 5, ..EngineConfig::default() };
    // Twelve sessions of 7 blocks each compete for these.
    let crowded = start(mock().with_confidence(3.0).with_blocks(24), config);
    let mut crowd: Vec<Session> = (0..12).map(|first| session(&crowded, &prompt(first, 50))).collect();
    // The second of the crowd has the prompt and the seed of the one that ran alone.
    let ends = crowd.iter_mut().enumerate().map(|(seed, session)| run(session, sample(seed as u64 + 10)));
    assert!(futures::future::join_all(ends).await.iter().all(Result::is_ok));
    assert!(crowded.counters().preemptions_total.get() > 0, "the crowd was meant to be preempted");
    assert_eq!(ids(&session_alone), ids(&crowd[1]));
    assert_ne!(ids(&session_alone)[50..], ids(&crowd[2])[50..]);
}

#[tokio::test]
async fn no_end_is_sampled_before_the_least_number_of_tokens() {
    let engine = start(mock(), EngineConfig::default());
    let eos: Vec<u32> = (0..256).filter(|id| id % 2 == 0).collect();
    let generate = |min_tokens| Generate { eos: eos.clone(), min_tokens, ..greedy(200) };
    let (steps, finish) = run(&mut session(&engine, &prompt(1, 20)), generate(0)).await.unwrap();
    assert!(steps.len() < 20 && finish == TurnFinish::Eos, "half of all tokens end it: {}", steps.len());
    let (steps, finish) = run(&mut session(&engine, &prompt(1, 20)), generate(20)).await.unwrap();
    assert!(steps[..20].iter().all(|step| !eos.contains(&step.id)), "{steps:?}");
    assert!(steps.len() > 20 && finish == TurnFinish::Eos, "{}", steps.len());
}

#[tokio::test]
async fn an_allow_list_binds_before_the_least_number_of_tokens_as_after_it() {
    let engine = start(mock().with_confidence(2.0), EngineConfig::default());
    for sampling in [SamplingParams::greedy(), SamplingParams::default()] {
        let allow = Some(vec![1, 2, 3, 9999]);
        let generate =
            Generate { sampling, allow, eos: vec![1], min_tokens: 20, max_tokens: 200, ..Generate::default() };
        let (steps, finish) = run(&mut session(&engine, &prompt(1, 20)), generate.clone()).await.unwrap();
        assert!(steps[..20].iter().all(|step| [2, 3].contains(&step.id)), "{steps:?}");
        let (last, between) = steps[20..].split_last().unwrap();
        assert!(between.iter().all(|step| [2, 3].contains(&step.id)) && last.id == 1, "{steps:?}");
        assert_eq!(finish, TurnFinish::Eos);
        let ends_only = Generate { allow: Some(vec![1, 9999]), ..generate };
        let refused = run(&mut session(&engine, &prompt(1, 20)), ends_only).await.unwrap_err();
        assert!(matches!(refused, EngineError::Request(message) if message.contains("min_tokens is 20")));
    }
}
