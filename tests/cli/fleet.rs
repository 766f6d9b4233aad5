//! The loop in one process over the engine of another.

use serde_json::Value;

use super::program::{Serving, waymark};

/// Returns the text of all events of an answer, which may be cut into events anywhere.
fn told(url: &str) -> String {
    let run = waymark(&["ask", "--url", url, "--policy-name", "plain", "--seed", "3", "--json", "Who wrote Faust?"]);
    assert!(run.ok(), "{}", run.stderr);
    let events = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.map(|event| event["text"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn two_processes_answer_as_one_does() {
    let engine = Serving::start(&["--mock"]);
    let loops = Serving::start(&["--mock", "--engine", &format!("waymark={}", engine.url)]);
    let text = told(&engine.url);
    assert!(text.len() > 20, "{text}");
    assert_eq!(told(&loops.url), text);
    assert!(waymark(&["health", "--url", &loops.url]).ok());
    assert!(engine.stop());
    // The loop learns of it with the next request, and from then on is not ready.
    let failed = waymark(&["ask", "--url", &loops.url, "--policy-name", "plain", "Who wrote Faust?"]);
    assert!(!failed.ok(), "{}", failed.stdout);
    let health = waymark(&["health", "--url", &loops.url]);
    assert!(!health.ok() && health.stderr.contains("engine"), "{}", health.stderr);
    assert!(loops.stop());
}

#[test]
fn an_engine_that_cannot_be_used_is_named_at_the_start() {
    for (engine, reason) in [
        ("vllm=http://127.0.0.1:9", "no engine can be reached"),
        ("vllm=https://gpu:8000", "TLS is not supported"),
        ("tgi=http://gpu:8000", "expected `vllm=http://host:8000`"),
    ] {
        let run = waymark(&["serve", "--mock", "--port", "0", "--engine", engine]);
        assert!(!run.ok() && run.stderr.contains(reason), "{engine}: {}", run.stderr);
    }
}
