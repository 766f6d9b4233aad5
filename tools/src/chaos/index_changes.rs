//! Documents added and removed while searches run, some of them hostile.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http_client::fetch;
use crate::invariant::Invariant;
use crate::poison;
use crate::run_shared::{Disturbance, RunShared};

/// Random stream of these changes. Clients use the streams from 1 on.
const STREAM: u64 = 1 << 32;

/// Request that changes the index.
struct RandomChange {
    method: &'static str,
    path: String,
    body: String,
    /// Number of hostile passages.
    poisoned: u64,
}

/// Changes the index until the load is over.
pub(crate) async fn disturb(shared: Arc<RunShared>) {
    let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
    rng.set_stream(STREAM);
    let target = shared.keys.client(shared.address, 0);
    while shared.pause(Duration::from_millis(rng.random_range(400..1500))).await {
        let since = Instant::now();
        let RandomChange { method, path, body, poisoned } = change(&mut rng);
        let made = fetch(&target, method, &path, &body).await;
        if matches!(made, Ok((200, _))) {
            shared.tally.count("index commits", 1);
            shared.tally.count("poisoned passages", poisoned);
        }
        let result = match made {
            // The document to remove does not exist.
            Ok((404, _)) if method == "DELETE" => Ok(()),
            made => judge(&shared, since, &made),
        };
        shared.tally.check(Invariant::Changes, result.map_err(|what| format!("{method} {path}: {what}")));
    }
}

/// Changes a document after the load, when nothing explains a refusal.
pub(crate) async fn change_once(shared: &RunShared) {
    let body = json!({"documents": [{"id": "last", "title": "Last", "text": "The load is over."}]}).to_string();
    let made = fetch(&shared.operator(), "POST", "/v1/documents", &body).await;
    let result = matches!(made, Ok((200, _))).then_some(()).ok_or_else(|| format!("after the load: {made:?}"));
    shared.tally.check(Invariant::Changes, result);
}

/// Judges the response to a change of documents that was sent at `since`.
pub(crate) fn judge(shared: &RunShared, since: Instant, made: &std::io::Result<(u16, String)>) -> Result<(), String> {
    let unwritable = shared.was(Disturbance::FullDisk, since) || shared.was(Disturbance::Damaged, since);
    match made {
        Ok((200 | 202, _)) => Ok(()),
        Ok((status, answer)) if shared.explains_refusal(since, *status, answer) => Ok(()),
        Err(_) if shared.was_out_of_reach(since) => Ok(()),
        Ok((500..=599, _)) if unwritable => Ok(()),
        Ok((status, answer)) => Err(format!("{status} {answer}")),
        Err(error) => Err(error.to_string()),
    }
}

fn change(rng: &mut ChaCha8Rng) -> RandomChange {
    if rng.random_range(0..4) == 0 {
        let path = format!("/v1/documents/p{}", rng.random_range(0..200));
        return RandomChange { method: "DELETE", path, body: String::new(), poisoned: 0 };
    }
    let mut poisoned = 0;
    let first = rng.random_range(0..200);
    let documents: Vec<Value> = (0..rng.random_range(1..5usize))
        .map(|index| {
            let number = (first + index) % 200;
            let poison = rng.random_range(0..3) == 0;
            poisoned += u64::from(poison);
            let what = if poison { poison::draw(rng).to_owned() } else { format!("as of {}", rng.random::<u16>()) };
            let text = format!("Subject {number} is what the question is about, {what}.");
            json!({"id": format!("p{number}"), "title": format!("Subject {number}"), "text": text})
        })
        .collect();
    let body = json!({"documents": documents}).to_string();
    RandomChange { method: "POST", path: "/v1/documents".to_owned(), body, poisoned }
}
