//! Greedy requests of one key alongside short requests of another. The time to the first token of the short ones is
//! measured.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http_client::{RawConnection, fetch};
use crate::invariant::Invariant;
use crate::run_shared::{Disturbance, RunShared};

/// Random stream of the greedy clients.
const STREAM: u64 = (1 << 32) + 16;

/// Length of a greedy prompt in words; a word is five digits and a space.
const WORDS: usize = 1000;

/// Number of prompts in a greedy list.
const PROMPTS: usize = 16;

/// Sends long prompts and lists of prompts until the load is over.
pub(crate) async fn greedy(shared: Arc<RunShared>, number: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
    rng.set_stream(STREAM + number);
    let target = shared.keys.greedy(shared.address);
    while shared.pause(Duration::from_millis(rng.random_range(0..50))).await {
        let since = Instant::now();
        // Random words, so no prompt has a cached prefix.
        let text = |words: usize, rng: &mut ChaCha8Rng| -> String {
            (0..words).map(|_| format!("{:05} ", rng.random_range(0..100_000))).collect()
        };
        let (path, body) = if rng.random_range(0..2) == 0 {
            let messages = json!([{"role": "user", "content": text(WORDS, &mut rng)}]);
            ("/v1/chat/completions", json!({"model": "plain", "messages": messages, "max_tokens": 16}))
        } else {
            let prompts: Vec<String> = (0..PROMPTS).map(|_| text(WORDS / PROMPTS, &mut rng)).collect();
            ("/v1/completions", json!({"model": "plain", "prompt": prompts, "max_tokens": 16}))
        };
        let answer = fetch(&target, "POST", path, &body.to_string()).await;
        shared.tally.count("greedy requests", 1);
        let result = match &answer {
            _ if shared.was(Disturbance::Killed, since) => Ok(()),
            Ok((200, body)) => serde_json::from_str::<Value>(body).map(drop).map_err(|error| error.to_string()),
            Ok((status, body)) if shared.explains_refusal(since, *status, body) => Ok(()),
            // A small model has no room for the prompt.
            Ok((400, body)) if body.contains("context_length_exceeded") => Ok(()),
            _ if shared.was_out_of_reach(since) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        shared.tally.check(Invariant::Responses, result.map_err(|what| format!("a greedy request: {what}")));
    }
}

/// Measures the time to the first token of short requests while nothing else runs.
pub(crate) async fn measure_alone(shared: &RunShared, requests: usize) {
    for _ in 0..requests {
        if let Some(time) = first_token(shared).await {
            shared.tally.with(|counts| counts.short.0.push(time));
        }
    }
}

/// Measures the time to the first token of short requests under load until the load is over.
pub(crate) async fn measure_under_load(shared: Arc<RunShared>) {
    while shared.pause(Duration::from_millis(200)).await {
        let since = Instant::now();
        let time = first_token(&shared).await;
        if let Some(time) = time.filter(|_| !shared.was_out_of_reach(since)) {
            shared.tally.with(|counts| counts.short.1.push(time));
        }
    }
}

/// Returns the time to the first token of a short request. `None` if the request was refused or broke off.
async fn first_token(shared: &RunShared) -> Option<Duration> {
    let target = shared.keys.short(shared.address);
    let messages = json!([{"role": "user", "content": format!("Hello {}", uuid::Uuid::now_v7().simple())}]);
    // Enough tokens for the mock, whose tokens are single letters, to get past the tag that opens its thought.
    let body = json!({"model": "plain", "messages": messages, "max_tokens": 16, "stream": true});
    let begun = Instant::now();
    let mut connection = RawConnection::send(&target, "POST", "/v1/chat/completions", &body.to_string()).await.ok()?;
    // The first chunk names the role and has no text.
    let spoken = |seen: &[u8]| {
        let text = String::from_utf8_lossy(seen);
        ["content", "reasoning_content"].iter().any(|field| text.contains(&format!("\"delta\":{{\"{field}\":\"")))
    };
    while !spoken(&connection.seen) {
        if connection.read(4096).await.unwrap_or(0) == 0 {
            return None;
        }
    }
    let time = begun.elapsed();
    // Bytes received before a reset still count.
    let _ = connection.rest().await;
    Some(time)
}
