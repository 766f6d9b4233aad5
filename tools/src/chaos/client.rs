//! One of many concurrent clients: sends requests, reads at its own pace, and judges the responses.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use waymark_agent::Event;

use crate::http_client::{RawConnection, Target};
use crate::invariant::Invariant;
use crate::poison;
use crate::run_shared::{Disturbance, RunShared};
use crate::tally::RequestOutcome;

/// Answer of the mock when its loop was not disturbed.
const MOCK_ANSWER: &str = "This is the mock: it has no model behind it.";

/// Reading behavior of a client.
#[derive(Debug, Clone, Copy)]
enum ReadingBehavior {
    /// Reads as fast as possible.
    Prompt,
    /// Reads this many bytes one at a time, then the rest.
    Slow(usize),
    /// Disconnects after this many bytes; 0 disconnects before there is a response.
    Leaves(usize),
}

/// Request of a client.
struct ClientRequest {
    path: &'static str,
    body: Value,
    stream: bool,
    /// If `true`, the mock's answer is known in advance.
    known: bool,
}

/// Sends one request after another until the load is over.
pub(crate) async fn live(shared: Arc<RunShared>, number: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
    rng.set_stream(number + 1);
    let target = shared.keys.client(shared.address, number);
    while !shared.is_over() {
        let request = ClientRequest::draw(&mut rng, &shared);
        let manner = manner(&mut rng, request.stream);
        let outcome = act(&shared, &target, &request, manner).await;
        shared.tally.end(outcome);
        if matches!(outcome, RequestOutcome::Finished | RequestOutcome::StreamError) {
            shared.tally.held(Invariant::Responses);
        }
        if matches!(manner, ReadingBehavior::Slow(_)) {
            shared.tally.with(|counts| counts.slow += 1);
        }
        let rest = match outcome {
            RequestOutcome::Refused | RequestOutcome::ServerDown => rng.random_range(50..250),
            _ => rng.random_range(0..20),
        };
        shared.pause(Duration::from_millis(rest)).await;
    }
}

/// Sends one request to each policy and one search after the load, when nothing explains a refusal.
pub(crate) async fn ask_each_kind(shared: &RunShared) {
    let target = shared.keys.client(shared.address, 0);
    let question = "What is subject 1 about?";
    let chat = |model: &str| {
        let messages = json!([{"role": "user", "content": question}]);
        let body = json!({"model": model, "messages": messages, "max_tokens": shared.plan.max_tokens});
        ClientRequest { path: "/v1/chat/completions", body, stream: false, known: model != "plain" }
    };
    let body = json!({"query": question, "k": 5});
    let search = ClientRequest { path: "/v1/search", body, stream: false, known: false };
    for request in [chat("routerag"), chat("swapped"), chat("plain"), search] {
        let outcome = act(shared, &target, &request, ReadingBehavior::Prompt).await;
        let failed = || format!("after the load, {} {} was {}", request.path, request.body, outcome.words());
        let result = (outcome == RequestOutcome::Finished).then_some(()).ok_or_else(failed);
        shared.tally.check(Invariant::Responses, result);
    }
}

/// Draws a reading behavior: one request in twenty is disconnected, and one stream in twenty is read slowly.
fn manner(rng: &mut ChaCha8Rng, stream: bool) -> ReadingBehavior {
    let choice = rng.random_range(0..100);
    let bytes = rng.random_range(0..4000);
    match choice {
        0..5 => ReadingBehavior::Leaves(if choice == 0 { 0 } else { bytes }),
        5..10 if stream => ReadingBehavior::Slow(20 + bytes / 50),
        _ => ReadingBehavior::Prompt,
    }
}

impl ClientRequest {
    fn draw(rng: &mut ChaCha8Rng, shared: &RunShared) -> ClientRequest {
        let subject = rng.random_range(0..200);
        let question = format!("What is subject {subject} about?");
        let model = ["routerag", "routerag", "swapped", "swapped", "plain"][rng.random_range(0..5)];
        let seed: u32 = rng.random();
        let most = shared.plan.max_tokens;
        let known = model != "plain";
        let messages = json!([{"role": "user", "content": question}]);
        let chat = json!({"model": model, "messages": messages, "max_tokens": most, "seed": seed});
        let agent = json!({"model": model, "question": question, "max_tokens": most, "seed": seed});
        let response = json!({"model": model, "input": question, "max_output_tokens": most, "seed": seed});
        let completion = json!({"model": model, "prompt": question, "max_tokens": most, "seed": seed});
        let (path, mut body, stream) = match rng.random_range(0..100) {
            0..35 => ("/v1/chat/completions", chat, true),
            35..55 => ("/v1/chat/completions", chat, false),
            55..70 => ("/v1/agent", agent, true),
            70..75 => ("/v1/agent", agent, false),
            75..87 => ("/v1/responses", response, true),
            87..90 => ("/v1/completions", completion, true),
            90..97 => ("/v1/search", json!({"query": question, "k": 5}), false),
            _ => ("/v1/documents?limit=5", Value::Null, false),
        };
        if stream {
            body["stream"] = json!(true);
        }
        // Completions continue the raw prompt without the loop, so their text is not the known answer.
        let loops = ["/v1/chat/completions", "/v1/agent", "/v1/responses"].contains(&path);
        ClientRequest { path, body, stream, known: known && loops }
    }
}

async fn act(shared: &RunShared, target: &Target, request: &ClientRequest, manner: ReadingBehavior) -> RequestOutcome {
    let since = Instant::now();
    let (method, body) = match &request.body {
        Value::Null => ("GET", String::new()),
        body => ("POST", body.to_string()),
    };
    let down_or_lost =
        || if shared.was_out_of_reach(since) { RequestOutcome::ServerDown } else { RequestOutcome::Lost };
    let Ok(mut connection) = RawConnection::send(target, method, request.path, &body).await else {
        return note(shared, request, "could not be sent", down_or_lost());
    };
    if read(&mut connection, manner).await {
        return RequestOutcome::Canceled;
    }
    let Some(status) = connection.status() else {
        return note(shared, request, "got no response", down_or_lost());
    };
    judge(shared, request, since, status, &connection.body())
}

/// Reads according to `manner`. Returns `true` if the client has disconnected.
async fn read(connection: &mut RawConnection, manner: ReadingBehavior) -> bool {
    match manner {
        ReadingBehavior::Prompt => {}
        ReadingBehavior::Leaves(after) => {
            while connection.seen.len() < after && !connection.closed {
                let _ = connection.read(256).await;
            }
            if !connection.closed {
                return true;
            }
        }
        ReadingBehavior::Slow(bytes) => {
            for _ in 0..bytes {
                if connection.read(1).await.unwrap_or(0) == 0 {
                    return false;
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // Bytes received before a reset still count.
    let _ = connection.rest().await;
    false
}

/// Judges a response.
fn judge(shared: &RunShared, request: &ClientRequest, since: Instant, status: u16, body: &str) -> RequestOutcome {
    let code = || code(body).unwrap_or_default();
    match status {
        200 if request.stream => streamed(shared, request, since, body),
        200 => match serde_json::from_str::<Value>(body) {
            Ok(whole) => {
                whole["trace"].as_array().into_iter().flatten().for_each(|event| look_for_poison(shared, event));
                answered(shared, request, &text(&whole))
            }
            Err(_) => broken_off(shared, request, since),
        },
        _ if shared.explains_refusal(since, status, body) => refused(shared, status, &code(), RequestOutcome::Refused),
        // A new process does not know the policy until it is loaded again.
        404 if code() == "model_not_found" && shared.was(Disturbance::Down, since) => {
            refused(shared, status, &code(), RequestOutcome::Refused)
        }
        500 if code() == "search_failed" && shared.was(Disturbance::Damaged, since) => {
            refused(shared, status, &code(), RequestOutcome::Refused)
        }
        _ => note(shared, request, &format!("was answered with {status}: {body}"), RequestOutcome::Wrong),
    }
}

fn streamed(shared: &RunShared, request: &ClientRequest, since: Instant, body: &str) -> RequestOutcome {
    let events: Vec<Value> =
        body.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    if let Some(error) = events.iter().find_map(error) {
        let code = error["code"].as_str().unwrap_or_default();
        let refusal = refused(shared, 200, code, RequestOutcome::StreamError);
        // Only a drain may end a stream with an error. OpenAI's Responses API has no code for a drain, so the message
        // is checked as well.
        let draining =
            code == "draining" || error["message"].as_str().is_some_and(|message| message.contains("shut down"));
        return if draining {
            refusal
        } else {
            note(shared, request, &format!("ended with {error}"), RequestOutcome::Wrong)
        };
    }
    let ends = |types: &[&str]| events.iter().any(|event| types.iter().any(|name| event["type"] == *name));
    let whole = match request.path {
        "/v1/agent" => ends(&["finished"]),
        "/v1/responses" => ends(&["response.completed", "response.incomplete"]),
        _ => body.ends_with("data: [DONE]\n\n"),
    };
    if !whole {
        return broken_off(shared, request, since);
    }
    for event in events.iter().filter(|_| request.path == "/v1/agent") {
        look_for_poison(shared, event);
    }
    answered(shared, request, &events.iter().map(text).collect::<String>())
}

/// Judges a response that broke off before its end. Only SIGKILL may break a response off.
fn broken_off(shared: &RunShared, request: &ClientRequest, since: Instant) -> RequestOutcome {
    let killed = shared.was(Disturbance::Killed, since);
    note(shared, request, "broke off", if killed { RequestOutcome::ServerDown } else { RequestOutcome::Lost })
}

/// Checks that an observation contains no hostile text of a poisoned passage that the server should have neutralized.
fn look_for_poison(shared: &RunShared, event: &Value) {
    let Ok(event @ Event::Observation { .. }) = serde_json::from_value(event.clone()) else { return };
    let result = match poison::find(&event) {
        Some(what) => Err(format!("an observation contains {what}: {event:?}")),
        None => Ok(()),
    };
    shared.tally.check(Invariant::Evidence, result);
}

/// Returns the error of an event, if any.
fn error(event: &Value) -> Option<&Value> {
    [&event["error"], &event["response"]["error"]].into_iter().find(|error| error.is_object())
}

/// Returns the text of a response or of a chunk.
fn text(part: &Value) -> String {
    let choice = &part["choices"][0];
    let said = [&choice["message"]["content"], &choice["delta"]["content"]].into_iter().find_map(Value::as_str);
    let event = match part["type"].as_str() {
        Some("answer") => part["text"].as_str(),
        Some("response.output_text.delta") => part["delta"].as_str(),
        _ => None,
    };
    said.or(event)
        .or(part["answer"].as_str().filter(|_| part["object"] == "agent.episode"))
        .unwrap_or_default()
        .to_owned()
}

fn answered(shared: &RunShared, request: &ClientRequest, text: &str) -> RequestOutcome {
    if shared.plan.mock() && request.known && text != MOCK_ANSWER {
        return note(shared, request, &format!("was answered {text:?}"), RequestOutcome::Wrong);
    }
    RequestOutcome::Finished
}

fn code(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    body["error"]["code"].as_str().map(str::to_owned)
}

fn refused(shared: &RunShared, status: u16, code: &str, outcome: RequestOutcome) -> RequestOutcome {
    shared.tally.with(|counts| *counts.refusals.entry(format!("{status} {code}")).or_default() += 1);
    outcome
}

fn note(shared: &RunShared, request: &ClientRequest, what: &str, outcome: RequestOutcome) -> RequestOutcome {
    if matches!(outcome, RequestOutcome::Lost | RequestOutcome::Wrong) {
        shared.tally.broken(Invariant::Responses, &format!("{} {}: {what}", request.path, request.body));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_in_every_response_format() {
        for part in [
            json!({"choices": [{"message": {"content": "x"}}]}),
            json!({"choices": [{"delta": {"content": "x"}}]}),
            json!({"type": "answer", "text": "x"}),
            json!({"type": "response.output_text.delta", "delta": "x"}),
            json!({"object": "agent.episode", "answer": "x", "type": null}),
        ] {
            assert_eq!(text(&part), "x", "{part}");
        }
        assert_eq!(text(&json!({"type": "think", "text": "x"})), "");
        assert_eq!(text(&json!({"type": "finished", "answer": "x"})), "", "sent before, delta by delta");
    }
}
