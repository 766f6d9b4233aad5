//! Engines elsewhere: the loop over another Waymark, and over a stub of vLLM that fails as a real one does.

mod adapters;
mod against_ourselves;
mod constrained;
mod failures;
mod fingerprints;
mod forks;
mod identity;
mod latency;
mod recomputed;
mod stub;
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use waymark_agent::{Generator, Resumption, SessionSource, Steps};
use waymark_engine::mock::Random;
use waymark_engine::{EngineError, Generate, Origin, SessionOptions, TokenStep, TurnFinish};
use waymark_models::sampler::SamplingParams;
use waymark_runtime::config::{FleetConfig, FleetTimeouts};
use waymark_runtime::fleet::{Fleet, RemoteSession};

use crate::harness::{PATIENCE, tokenizer};

/// Seed of the text that every engine of these tests writes.
const SEED: u64 = 7;

/// Vocabulary of the byte tokenizer.
const VOCAB: usize = 259;

/// Configuration with limits that nothing reaches, and short pauses before an engine is checked again.
fn config(kind: &str, urls: &[&str]) -> FleetConfig {
    FleetConfig {
        engines: urls.iter().map(|url| format!("{kind}={url}").parse().unwrap()).collect(),
        model: None,
        key_env: "WAYMARK_TEST_NO_KEY".to_owned(),
        ca: None,
        adapters: None,
        requests: 64,
        timeouts: FleetTimeouts {
            connect: PATIENCE,
            first_token: PATIENCE,
            token: PATIENCE,
            recheck: Duration::from_millis(40),
            closed: 10 * PATIENCE,
        },
    }
}

async fn connect(config: &FleetConfig) -> anyhow::Result<Fleet> {
    Fleet::connect(config, Arc::new(tokenizer()), None).await
}

/// Returns the error of a fleet that cannot be connected.
async fn refusal(config: &FleetConfig) -> String {
    format!("{:#}", connect(config).await.unwrap_err())
}

/// Returns what an undisturbed engine writes after `ids`.
fn undisturbed(ids: &[u32], count: usize) -> Vec<u32> {
    let random = Random { seed: SEED, vocab: VOCAB };
    let mut all = ids.to_vec();
    for _ in 0..count {
        all.push(random.next(None, &all));
    }
    all.split_off(ids.len())
}

fn spec(max_tokens: usize) -> Generate {
    Generate { sampling: SamplingParams::greedy(), max_tokens, ..Generate::default() }
}

/// Everything that a turn produced.
#[derive(Debug)]
struct Turn {
    steps: Vec<TokenStep>,
    finish: Option<TurnFinish>,
    resumed: Vec<Resumption>,
    error: Option<EngineError>,
}

impl Turn {
    fn ids(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.id).collect()
    }
}

/// Runs a turn to its end.
async fn run(session: &mut RemoteSession, spec: Generate) -> Turn {
    let mut turn = session.generate(spec).await.unwrap();
    let mut steps = Vec::new();
    let mut resumed = Vec::new();
    let mut error = None;
    while let Some(step) = turn.next().await {
        resumed.extend(std::iter::from_fn(|| turn.resumption()));
        match step {
            Ok(step) => steps.push(step),
            Err(failure) => error = Some(failure),
        }
    }
    Turn { steps, finish: turn.finish(), resumed, error }
}

/// Opens a session with a prompt.
fn opened(fleet: &Fleet, ids: &[u32]) -> RemoteSession {
    let mut session = fleet.open(SessionOptions::default());
    session.append(ids, Origin::Prompt, false);
    session
}
