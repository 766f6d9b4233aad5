//! One of the many: asks, reads as it likes, and judges what it got.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::pulse::Pulse;
use crate::tally::Outcome;
use crate::wire::Wire;

/// What the mock answers when its loop was not disturbed.
const MOCK_ANSWER: &str = "This is the mock: it has no model behind it.";

/// How a client reads.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// As fast as it can.
    Prompt,
    /// So many bytes, one at a time, then the rest.
    Slow(usize),
    /// It leaves after so many bytes; 0: before there is an answer.
    Leaves(usize),
}

/// What a client asks.
struct Request {
    path: &'static str,
    body: Value,
    stream: bool,
    /// Whether the mock's answer to it is known.
    known: bool,
}

/// Asks one thing after the other until the load is over.
pub(crate) async fn live(pulse: Arc<Pulse>, number: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(pulse.plan.seed);
    rng.set_stream(number + 1);
    while !pulse.is_over() {
        let request = Request::draw(&mut rng, &pulse);
        let manner = manner(&mut rng, request.stream);
        let outcome = act(&pulse, &request, manner).await;
        pulse.tally.end(outcome);
        if matches!(manner, Manner::Slow(_)) {
            pulse.tally.with(|counts| counts.slow += 1);
        }
        let rest = match outcome {
            Outcome::Refused | Outcome::Away => rng.random_range(50..250),
            _ => rng.random_range(0..20),
        };
        pulse.pause(Duration::from_millis(rest)).await;
    }
}

/// One in twenty leaves, one in twenty is slow.
fn manner(rng: &mut ChaCha8Rng, stream: bool) -> Manner {
    let (choice, bytes) = (rng.random_range(0..100), rng.random_range(0..4000));
    match choice {
        0..5 => Manner::Leaves(if choice == 0 { 0 } else { bytes }),
        5..10 if stream => Manner::Slow(20 + bytes / 50),
        _ => Manner::Prompt,
    }
}

impl Request {
    fn draw(rng: &mut ChaCha8Rng, pulse: &Pulse) -> Request {
        let subject = rng.random_range(0..200);
        let question = format!("What is subject {subject} about?");
        let model = ["routerag", "routerag", "swapped", "swapped", "plain"][rng.random_range(0..5)];
        let seed: u32 = rng.random();
        let (most, known) = (pulse.plan.max_tokens, model != "plain");
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
        // What it says to a prompt as it stands is not its answer.
        let loops = ["/v1/chat/completions", "/v1/agent", "/v1/responses"].contains(&path);
        Request { path, body, stream, known: known && loops }
    }
}

async fn act(pulse: &Pulse, request: &Request, manner: Manner) -> Outcome {
    let since = Instant::now();
    let (method, body) = match &request.body {
        Value::Null => ("GET", String::new()),
        body => ("POST", body.to_string()),
    };
    let away = || if pulse.was_away(since) { Outcome::Away } else { Outcome::Lost };
    let Ok(mut wire) = Wire::send(pulse.address, method, request.path, &body).await else {
        return note(pulse, request, "could not be sent", away());
    };
    if read(&mut wire, manner).await {
        return Outcome::Cancelled;
    }
    let Some(status) = wire.status() else {
        return note(pulse, request, "got no answer", away());
    };
    judge(pulse, request, status, &wire.body())
}

/// Reads as its manner is; true when it has left.
async fn read(wire: &mut Wire, manner: Manner) -> bool {
    match manner {
        Manner::Prompt => {}
        Manner::Leaves(after) => {
            while wire.seen.len() < after && !wire.closed {
                let _ = wire.read(256).await;
            }
            if !wire.closed {
                return true;
            }
        }
        Manner::Slow(bytes) => {
            for _ in 0..bytes {
                if wire.read(1).await.unwrap_or(0) == 0 {
                    return false;
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    // What came before a reset still counts.
    let _ = wire.rest().await;
    false
}

/// What an answer is worth.
fn judge(pulse: &Pulse, request: &Request, status: u16, body: &str) -> Outcome {
    let code = || code(body).unwrap_or_default();
    match status {
        200 if request.stream => streamed(pulse, request, body),
        200 => match serde_json::from_str::<Value>(body) {
            Ok(whole) => answered(pulse, request, &text(&whole)),
            Err(_) => note(pulse, request, "broke off", Outcome::Lost),
        },
        429 | 503 => refused(pulse, status, &code(), Outcome::Refused),
        // Until the policy is loaded into a new life.
        404 if code() == "model_not_found" => refused(pulse, status, &code(), Outcome::Refused),
        _ => note(pulse, request, &format!("was answered with {status}: {body}"), Outcome::Wrong),
    }
}

fn streamed(pulse: &Pulse, request: &Request, body: &str) -> Outcome {
    let events: Vec<Value> =
        body.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    if let Some(error) = events.iter().find_map(error) {
        let code = error["code"].as_str().unwrap_or_default();
        let told = refused(pulse, 200, code, Outcome::Told);
        // Only a drain may break a stream off: nothing else here goes wrong inside one. Of a response OpenAI's interface
        // has no code that would say so.
        let shut = code == "draining" || error["message"].as_str().is_some_and(|message| message.contains("shut down"));
        return if shut { told } else { note(pulse, request, &format!("was told {error}"), Outcome::Wrong) };
    }
    let ends = |types: &[&str]| events.iter().any(|event| types.iter().any(|name| event["type"] == *name));
    let whole = match request.path {
        "/v1/agent" => ends(&["finished"]),
        "/v1/responses" => ends(&["response.completed", "response.incomplete"]),
        _ => body.ends_with("data: [DONE]\n\n"),
    };
    if !whole {
        return note(pulse, request, "broke off", Outcome::Lost);
    }
    answered(pulse, request, &events.iter().map(text).collect::<String>())
}

/// What an event says went wrong.
fn error(event: &Value) -> Option<&Value> {
    [&event["error"], &event["response"]["error"]].into_iter().find(|error| error.is_object())
}

/// What an answer, or a part of one, says.
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

fn answered(pulse: &Pulse, request: &Request, text: &str) -> Outcome {
    if pulse.plan.mock() && request.known && text != MOCK_ANSWER {
        return note(pulse, request, &format!("was answered {text:?}"), Outcome::Wrong);
    }
    Outcome::Finished
}

fn code(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    body["error"]["code"].as_str().map(str::to_owned)
}

fn refused(pulse: &Pulse, status: u16, code: &str, outcome: Outcome) -> Outcome {
    pulse.tally.with(|counts| *counts.refusals.entry(format!("{status} {code}")).or_default() += 1);
    outcome
}

fn note(pulse: &Pulse, request: &Request, what: &str, outcome: Outcome) -> Outcome {
    if matches!(outcome, Outcome::Lost | Outcome::Wrong) {
        pulse.tally.broken(format!("{} {}: {what}", request.path, request.body));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_say_is_found_in_every_form() {
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
        assert_eq!(text(&json!({"type": "finished", "answer": "x"})), "", "told before, delta by delta");
    }
}
