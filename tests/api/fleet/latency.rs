//! The cost of an engine elsewhere: `cargo test --release --test api -- --ignored --nocapture fleet::latency`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use waymark_agent::{Conversation, Episode, EpisodeOptions, Policy, Runtime};
use waymark_engine::{Engine, EngineConfig};
use waymark_runtime::fleet::TokenSource;

use super::{config, connect};
use crate::harness::{OnePassage, TestServer, script, template, tokenizer};
use crate::traces::loops;

/// Number of episodes at once.
const LOOPS: usize = 64;

/// Number of episodes per measurement.
const QUESTIONS: usize = 1024;

/// Turns of each episode: a search, then the answer.
const TURNS: usize = 2;

type Served = Runtime<TokenSource>;

fn runtime(source: TokenSource) -> Served {
    let tokenizer = Arc::new(tokenizer());
    let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
    Runtime::new(source, tokenizer, Some(Arc::new(template())), eos, Some(Arc::new(OnePassage)))
}

async fn question(runtime: &Served, policy: &Policy, number: usize) {
    let asked = Conversation::new(format!("Who wrote Faust, part {number}?"));
    let episode = Episode::new(runtime, policy, asked, EpisodeOptions::default()).unwrap();
    let (events, mut received) = mpsc::channel(64);
    let reader = tokio::spawn(async move { while received.recv().await.is_some() {} });
    let trajectory = episode.run(events).await.unwrap();
    reader.await.unwrap();
    assert_eq!((trajectory.answer.as_deref().map(str::trim), trajectory.actions.len()), (Some("Goethe"), TURNS));
}

/// Returns the time of `count` episodes, `at_once` of them at a time.
async fn measure(runtime: &Served, count: usize, at_once: usize) -> Duration {
    let policy = Policy::builtin("routerag").unwrap();
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..at_once {
        let runtime = runtime.clone();
        let policy = policy.clone();
        tasks.spawn(async move {
            for number in (first..count).step_by(at_once) {
                question(&runtime, &policy, number).await;
            }
        });
    }
    tasks.join_all().await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn loops_in_process_against_loops_over_loopback() {
    let settings = EngineConfig::default();
    let engine = Engine::start(Box::new(script(&loops())), settings, tokenizer().table()).unwrap();
    let local = runtime(engine.into());
    let server = TestServer::new(script(&loops())).await;
    let fleet = connect(&config("waymark", &[&server.url("")])).await.unwrap();
    let remote = runtime(fleet.clone().into());
    // Once before anything is timed: connections, caches, threads.
    for runtime in [&local, &remote] {
        measure(runtime, LOOPS, LOOPS).await;
    }
    let counters = fleet.remote_counters();
    let bytes = || (counters.sent_bytes_total.get(), counters.received_bytes_total.get());
    let before = bytes();
    let times = [measure(&local, QUESTIONS, LOOPS).await, measure(&remote, QUESTIONS, LOOPS).await];
    let turns = (QUESTIONS * TURNS) as f64;
    let [sent, received] = [bytes().0 - before.0, bytes().1 - before.1].map(|bytes| bytes as f64 / turns);
    let rates = times.map(|time| QUESTIONS as f64 / time.as_secs_f64());
    println!("{LOOPS} loops: {:.0} questions/s in process, {:.0} over loopback", rates[0], rates[1]);
    let turn = times.map(|time| time.as_secs_f64() * 1e3 * LOOPS as f64 / turns);
    println!("{LOOPS} loops: {:.3} ms per turn in process, {:.3} over loopback", turn[0], turn[1]);
    println!("per turn: {sent:.0} bytes sent, {received:.0} received");
    let single = [measure(&local, QUESTIONS / 4, 1).await, measure(&remote, QUESTIONS / 4, 1).await];
    let each = single.map(|time| time.as_secs_f64() * 1e3 / (turns / 4.0));
    println!(
        "one loop: {:.3} ms per turn in process, {:.3} over loopback: {:.3} ms more",
        each[0],
        each[1],
        each[1] - each[0]
    );
}
