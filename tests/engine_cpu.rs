//! The engine over the real decoder: batching, chunked prefill, caching, preemption and parking never change the output
//! of a session.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../models/tests/pulled/mod.rs"]
mod pulled;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waymark_engine::{
    Backend, CpuBackend, Engine, EngineConfig, EngineError, Footprint, Generate, KvBudget, LoadedAdapter, Origin,
    Session, SessionOptions, TurnFinish,
};
use waymark_models::decoder::Decoder;
use waymark_models::gradient::{Learner, Tune};
use waymark_models::kernel::Team;
use waymark_models::sampler::SamplingParams;
use waymark_models::tokenizer::Tokenizer;
use waymark_models::weights::Weights;
use waymark_models::{AdapterSlot, BLOCK, ForwardBatch, LogitPositions, Logits};

fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/tests/fixtures/decoder")).join(name)
}

fn decoder(weights: &Weights) -> Decoder {
    Decoder::load(weights, Arc::new(Team::new(2))).unwrap()
}

fn engine(weights: &Weights, budget: KvBudget, config: EngineConfig) -> Engine {
    let backend = CpuBackend::new(decoder(weights), "test", weights.generation(), budget).unwrap();
    Engine::start(Box::new(backend), config, Tokenizer::bytes().table()).unwrap()
}

/// Reference greedy decoding: one sequence, prefilled in one pass, then decoded token by token.
fn alone(decoder: &mut Decoder, ids: &[u32], tokens: usize, adapter: Option<AdapterSlot>) -> Vec<u32> {
    let mut ids = ids.to_vec();
    let mut logits = Logits::new();
    let blocks = (ids.len() + tokens).div_ceil(BLOCK);
    // In reverse, so a decoder which ignored the table would fail.
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let mut cache = decoder.kv_cache(blocks);
    let mut done = 0;
    for _ in 0..tokens {
        let mut batch = ForwardBatch::new();
        batch.push(&ids[done..], done, &table, adapter, LogitPositions::Last);
        decoder.forward(&batch, &mut cache, &mut logits).unwrap();
        done = ids.len();
        // The lowest ID wins among equal logits, as in greedy sampling.
        let best = logits.row(0).iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        ids.push(best.unwrap().0 as u32);
    }
    ids
}

fn greedy(max_tokens: usize) -> Generate {
    Generate { sampling: SamplingParams::greedy(), max_tokens, ..Generate::default() }
}

fn ids(session: &Session) -> Vec<u32> {
    session.tokens().iter().map(|token| token.id).collect()
}

async fn run(session: &mut Session, tokens: usize) {
    let mut turn = session.generate(greedy(tokens)).await.unwrap();
    while let Some(step) = turn.next().await {
        step.unwrap();
    }
    assert_eq!(turn.finish(), Some(TurnFinish::Length));
}

fn prompt(family: u32, tokens: u32, vocab: u32) -> Vec<u32> {
    (0..tokens).map(|position| (family * 17 + position * 29 + position * position) % vocab).collect()
}

/// Runs two turns with an observation between them. Returns the session.
async fn episode(engine: &Engine, prompt: Vec<u32>, adapter: Option<LoadedAdapter>) -> Session {
    let mut session = engine.session(SessionOptions { adapter, ..SessionOptions::default() });
    session.append(&prompt, Origin::Prompt, false);
    run(&mut session, 12).await;
    session.append(&prompt[..9], Origin::Environment, false);
    run(&mut session, 10).await;
    session
}

fn episode_alone(decoder: &mut Decoder, prompt: &[u32], adapter: Option<AdapterSlot>) -> Vec<u32> {
    let mut ids = alone(decoder, prompt, 12, adapter);
    ids.extend(&prompt[..9]);
    alone(decoder, &ids, 10, adapter)
}

#[tokio::test]
async fn crowded_sessions_say_what_they_say_alone() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    // 12 blocks hold two of the sequences, of which 10 want to run.
    let config = EngineConfig { step_tokens: 24, max_batch_rows: 6, ..EngineConfig::default() };
    let engine = engine(&weights, KvBudget::Blocks(12), config);
    let prompts: Vec<_> = (0..10).map(|index| prompt(index % 3, 30 + 5 * index, 256)).collect();
    let sessions = futures::future::join_all(prompts.iter().map(|prompt| episode(&engine, prompt.clone(), None))).await;
    let mut decoder = decoder(&weights);
    for (session, prompt) in sessions.iter().zip(&prompts) {
        assert_eq!(ids(session), episode_alone(&mut decoder, prompt, None));
    }
    let counters = engine.counters();
    assert!(counters.prefill_tokens_recomputed_total.get() > 0 && counters.evictions_total.get() > 0);
    assert!(counters.prefix_cache_hit_tokens_total.get() > 0);
    assert_eq!(counters.invariant_violations_total.get() + counters.step_failures_total.get(), 0);
}

#[tokio::test]
async fn sessions_with_proposed_tokens_say_what_they_say_alone() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let config = EngineConfig { step_tokens: 64, lookup_tokens: 4, ..EngineConfig::default() };
    let engine = engine(&weights, KvBudget::Blocks(64), config);
    let prompts: Vec<_> = (0..4).map(|index| prompt(index, 40, 256).repeat(2)).collect();
    let sessions = futures::future::join_all(prompts.iter().map(|prompt| episode(&engine, prompt.clone(), None))).await;
    let mut decoder = decoder(&weights);
    for (session, prompt) in sessions.iter().zip(&prompts) {
        assert_eq!(ids(session), episode_alone(&mut decoder, prompt, None));
    }
    let counters = engine.counters();
    let accepted = counters.lookup_accepted_tokens_total.get();
    let proposed = counters.lookup_proposed_tokens_total.get();
    assert!(proposed > 0 && accepted <= proposed, "{accepted} of {proposed}");
    assert_eq!(counters.invariant_violations_total.get() + counters.step_failures_total.get(), 0);
}

#[tokio::test]
async fn adapters_mix_in_a_batch_without_touching_each_other() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let engine = engine(&weights, KvBudget::Bytes(1 << 20), EngineConfig::default());
    let mut decoder = decoder(&weights);
    let mut policies = vec![(None, None)];
    for name in ["full", "rslora"] {
        let dir = fixture("qwen3-adapters").join(name);
        let plain = decoder.load_adapter(&dir).unwrap();
        policies.push((Some(engine.load_adapter(dir).await.unwrap()), Some(plain)));
    }
    let prompt = prompt(1, 40, 256);
    let episodes = policies.iter().map(|(adapter, _)| episode(&engine, prompt.clone(), *adapter));
    let sessions = futures::future::join_all(episodes).await;
    let said: Vec<_> = sessions.iter().map(ids).collect();
    for (ids, (_, plain)) in said.iter().zip(&policies) {
        assert_eq!(ids, &episode_alone(&mut decoder, &prompt, *plain));
    }
    assert!(said[0] != said[1] && said[1] != said[2], "the adapters change nothing");
    assert_eq!(engine.counters().prefix_cache_hit_tokens_total.get(), 0, "a cache belongs to one policy");
}

#[tokio::test]
async fn other_weights_answer_and_nothing_cached_by_the_old_ones_does() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let engine = engine(&weights, KvBudget::Bytes(1 << 20), EngineConfig::default());
    let mut learner = Learner::load(&weights, Arc::new(Team::new(2)), &Tune::Full).unwrap();
    let prompt = prompt(1, 40, 256);
    let hits = || engine.counters().prefix_cache_hit_tokens_total.get();
    let mut said = vec![ids(&episode(&engine, prompt.clone(), None).await)];
    assert_eq!(hits(), 0);
    for round in 1..3u64 {
        learner.change(|values, _| {
            values.iter_mut().enumerate().for_each(|(at, value)| *value *= 1.1 - (at % 3) as f32 / 10.0)
        });
        engine.replace_weights(learner.weights().unwrap()).await.unwrap();
        let mut decoder = decoder(&learner.weights().unwrap());
        let wanted = episode_alone(&mut decoder, &prompt, None);
        // Twice: the second time it is found in the cache, as it was computed with these weights.
        // 32 of the 40 tokens are in whole blocks.
        for found in [32 * (round - 1), 32 * round] {
            let session = episode(&engine, prompt.clone(), None).await;
            assert_eq!((ids(&session), hits()), (wanted.clone(), found), "round {round}");
        }
        said.push(wanted);
    }
    assert!(said[0] != said[1] && said[1] != said[2], "the weights change nothing");
    assert_eq!(engine.counters().invariant_violations_total.get(), 0);
}

#[tokio::test]
async fn weights_are_not_replaced_under_a_session_or_an_adapter() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let engine = engine(&weights, KvBudget::Bytes(1 << 20), EngineConfig::default());
    let learner = Learner::load(&weights, Arc::new(Team::new(2)), &Tune::Full).unwrap();
    let refused = async || match engine.replace_weights(learner.weights().unwrap()).await.unwrap_err() {
        EngineError::Weights(reason) => reason,
        other => panic!("{other}"),
    };
    let session = episode(&engine, prompt(1, 40, 256), None).await;
    assert!(refused().await.contains("1 sessions and 0 adapters"));
    drop(session);
    let adapter = engine.load_adapter(fixture("qwen3-adapters").join("full")).await.unwrap();
    assert!(refused().await.contains("0 sessions and 1 adapters"));
    engine.unload_adapter(adapter);
    engine.replace_weights(learner.weights().unwrap()).await.unwrap();
    let other = Weights::open(&fixture("llama")).unwrap();
    let error = engine.replace_weights(other).await.unwrap_err().to_string();
    assert!(error.starts_with("weights: ") && error.contains("another shape"), "{error}");
}

#[tokio::test]
async fn what_was_sampled_is_scored_again_to_the_bit() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let run = async |config: EngineConfig, force: Vec<u32>| {
        let engine = engine(&weights, KvBudget::Bytes(1 << 20), config);
        let mut session = engine.session(SessionOptions::default());
        session.append(&prompt(2, 50, 256), Origin::Prompt, false);
        let mut turn = session.generate(Generate { force, max_tokens: 40, ..Generate::default() }).await.unwrap();
        while let Some(step) = turn.next().await {
            step.unwrap();
        }
        drop(turn);
        session.tokens().to_vec()
    };
    let sampled = run(EngineConfig::default(), Vec::new()).await;
    let force = sampled[50..].iter().map(|token| token.id).collect();
    // Other batches than those in which it was sampled.
    let scored = run(EngineConfig { step_tokens: 16, max_batch_rows: 4, ..EngineConfig::default() }, force).await;
    assert_eq!(scored, sampled);
}

#[tokio::test]
async fn a_budget_in_bytes_becomes_blocks_and_none_is_refused() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let block = decoder(&weights).kv_bytes_per_token() * BLOCK;
    let blocks = |bytes| {
        let backend = CpuBackend::new(decoder(&weights), "test", 1, KvBudget::Bytes(bytes));
        backend.map(|backend| backend.spec().blocks)
    };
    assert_eq!(blocks(block * 3 + block / 2), Ok(3));
    assert!(blocks(block - 1).unwrap_err().0.contains("the KV budget is too small: one block"));
}

#[tokio::test]
async fn what_comes_and_goes_is_counted_in_bytes() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let mut plain = decoder(&weights);
    let block = (plain.kv_bytes_per_token() * BLOCK) as u64;
    let dir = fixture("qwen3-adapters").join("full");
    plain.load_adapter(&dir).unwrap();
    let one = plain.adapter_bytes() as u64;
    assert!(one > 0);
    let engine = engine(&weights, KvBudget::Blocks(40), EngineConfig::default());
    let held = async || {
        engine.snapshot().await.unwrap();
        let counters = engine.counters();
        (counters.kv_bytes.get() / block, counters.adapters.get(), counters.adapter_bytes.get() / one)
    };
    assert_eq!(held().await, (0, 0, 0));
    drop(episode(&engine, prompt(1, 40, 256), None).await);
    // 71 tokens, of which the last has no KV yet.
    assert_eq!(held().await, (5, 0, 0));
    drop(episode(&engine, prompt(1, 20, 256), None).await);
    let (touched, ..) = held().await;
    assert!((5..=10).contains(&touched), "{touched}: blocks that were used and are not known are used again");
    let adapter = engine.load_adapter(dir.clone()).await.unwrap();
    let session = episode(&engine, prompt(2, 40, 256), Some(adapter)).await;
    let other = engine.load_adapter(dir).await.unwrap();
    engine.unload_adapter(adapter);
    let (_, adapters, loaded) = held().await;
    assert_eq!((adapters, loaded), (2, 2), "its session is still there");
    drop(session);
    let (_, adapters, loaded) = held().await;
    assert_eq!((adapters, loaded), (1, 1));
    engine.unload_adapter(other);
    let (_, adapters, loaded) = held().await;
    assert_eq!((adapters, loaded), (0, 0));
}

#[tokio::test]
async fn kv_that_is_reserved_has_its_memory_from_the_start() {
    let weights = Weights::open(&fixture("qwen3")).unwrap();
    let backend = CpuBackend::new(decoder(&weights), "test", 1, KvBudget::Blocks(40)).unwrap().with_reserved_kv();
    let block = decoder(&weights).kv_bytes_per_token() * BLOCK;
    assert_eq!(backend.footprint(), Footprint { kv: 40 * block, adapters: 0 });
    let engine = Engine::start(Box::new(backend), EngineConfig::default(), Tokenizer::bytes().table()).unwrap();
    let session = episode(&engine, prompt(1, 40, 256), None).await;
    assert_eq!(ids(&session), episode_alone(&mut decoder(&weights), &prompt(1, 40, 256), None));
    engine.snapshot().await.unwrap();
    assert_eq!(engine.counters().kv_bytes.get(), 40 * block as u64);
}

#[tokio::test]
async fn smollm2_parks_and_goes_on_without_computing_anything_twice() {
    let weights = Weights::open(&pulled::policy()).unwrap();
    let vocab = weights.config().vocab as u32;
    let engine = engine(&weights, KvBudget::Bytes(256 << 20), EngineConfig { step_tokens: 64, ..Default::default() });
    let prompts: Vec<_> = (0..3).map(|family| prompt(family, 50, vocab)).collect();
    let sessions = futures::future::join_all(prompts.iter().map(|prompt| episode(&engine, prompt.clone(), None))).await;
    let mut decoder = decoder(&weights);
    for (session, prompt) in sessions.iter().zip(&prompts) {
        assert_eq!(ids(session), episode_alone(&mut decoder, prompt, None));
    }
    assert_eq!(engine.counters().prefill_tokens_recomputed_total.get(), 0);
    // Ten more: the observation, and the token before it, which was sampled last.
    assert_eq!(engine.counters().prefill_tokens_total.get(), 3 * (50 + 10));
}
