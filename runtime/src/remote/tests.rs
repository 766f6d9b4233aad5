#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use waymark_index::openie::{Endpoint, EndpointOptions};
use waymark_index::{Extract, ModelRole, Passage, Triple};

use super::*;

/// A server that answers as it was told, request after request; the last answer again and again.
pub(super) struct ScriptedEndpoint {
    pub(super) url: String,
    pub(super) seen: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
    _runtime: tokio::runtime::Runtime,
}

/// An answer: the status, a `Retry-After`, the body; without a status it never comes.
pub(super) type ScriptedReply = (Option<u16>, Option<&'static str>, String);

impl ScriptedEndpoint {
    pub(super) fn start(answer: impl Fn(usize, &Value) -> ScriptedReply + Send + Sync + 'static) -> ScriptedEndpoint {
        ScriptedEndpoint::start_at("127.0.0.1:0", answer)
    }

    pub(super) fn start_at(
        address: &str,
        answer: impl Fn(usize, &Value) -> ScriptedReply + Send + Sync + 'static,
    ) -> ScriptedEndpoint {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let answer = Arc::new(answer);
        let handler = move |headers: HeaderMap, body: String| {
            let log = Arc::clone(&log);
            let answer = Arc::clone(&answer);
            async move {
                let body: Value = serde_json::from_str(&body).unwrap();
                let number = {
                    let mut log = log.lock().unwrap();
                    log.push((headers, body.clone()));
                    log.len() - 1
                };
                let (status, retry, text) = answer(number, &body);
                let Some(status) = status else { return std::future::pending().await };
                let status = StatusCode::from_u16(status).unwrap();
                let mut response = (status, text).into_response();
                if let Some(retry) = retry {
                    response.headers_mut().insert("retry-after", retry.parse().unwrap());
                }
                response
            }
        };
        let router = Router::new().fallback(axum::routing::post(handler));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
        ScriptedEndpoint { url, seen, _runtime: runtime }
    }

    fn says(answers: Vec<ScriptedReply>) -> ScriptedEndpoint {
        ScriptedEndpoint::start(move |number, _| answers[number.min(answers.len() - 1)].clone())
    }

    fn endpoint(&self, key: Option<&str>) -> ChatEndpoint {
        self.within(Duration::from_secs(60), key)
    }

    /// Returns an endpoint whose replies must come within `timeout`.
    fn within(&self, timeout: Duration, key: Option<&str>) -> ChatEndpoint {
        let key = key.map(|key| EndpointKey::new(key).unwrap());
        ChatEndpoint::new(&self.url, "m", key, timeout, TrustedRoots::default()).unwrap()
    }

    fn seen(&self) -> Vec<(HeaderMap, Value)> {
        self.seen.lock().unwrap().clone()
    }
}

fn said(text: &str, finish: &str) -> ScriptedReply {
    let body = json!({"object": "chat.completion", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    ]});
    (Some(200), None, body.to_string())
}

fn refused(status: u16, body: &str) -> ScriptedReply {
    (Some(status), None, body.to_owned())
}

fn ask(endpoint: &ChatEndpoint) -> Result<ModelReply, CompleteError> {
    let message = |role, content: &str| ModelMessage { role, content: content.to_owned() };
    endpoint.complete(&[message(ModelRole::System, "Be \"brief\"."), message(ModelRole::User, "Zürich?")], 77)
}

#[test]
fn a_request_is_what_openai_documents() {
    let server = ScriptedEndpoint::says(vec![said("Yes.", "stop"), said("It was cu", "length")]);
    let endpoint = server.endpoint(Some(" sk-secret\n"));
    assert_eq!(ask(&endpoint).unwrap(), ModelReply { text: "Yes.".into(), cut: false });
    assert_eq!(ask(&endpoint).unwrap(), ModelReply { text: "It was cu".into(), cut: true });
    let (headers, body) = server.seen().remove(0);
    assert_eq!(headers["authorization"], "Bearer sk-secret");
    assert_eq!(headers["content-type"], "application/json");
    let expected = json!({"model": "m", "temperature": 0, "stream": false, "max_tokens": 77, "messages": [
        {"role": "system", "content": "Be \"brief\"."}, {"role": "user", "content": "Zürich?"}
    ]});
    assert_eq!(body, expected);
    assert!(!format!("{endpoint:?}").contains("sk-secret"));
}

#[test]
fn failures_are_of_three_kinds() {
    let error = |message: &str| json!({"error": {"message": message}}).to_string();
    let quota = json!({"error": {"message": "pay", "code": "insufficient_quota"}}).to_string();
    for (answer, kind, expected) in [
        (refused(401, &error("bad key sk-secret!")), "refused", "bad key …!"),
        (refused(403, "plain words"), "refused", "plain words"),
        (refused(404, &error("no such model")), "refused", "404 Not Found: no such model"),
        (refused(307, ""), "refused", "no message"),
        (refused(400, &error("too long")), "rejected", "too long"),
        (refused(422, r#"{"detail": "odd"}"#), "rejected", "odd"),
        (refused(429, &quota), "refused", "pay"),
        (refused(429, &error("slow down")), "transient", "slow down"),
        (refused(500, &error("oops")), "transient", "oops"),
        (refused(503, ""), "transient", "503"),
        (refused(200, "<html>"), "transient", "is not a chat completion"),
        (refused(200, r#"{"choices": []}"#), "transient", "no choice"),
        ((None, None, String::new()), "transient", "no reply from"),
    ] {
        let timeout = if answer.0.is_some() { Duration::from_secs(60) } else { Duration::from_millis(400) };
        let server = ScriptedEndpoint::says(vec![answer]);
        let error = ask(&server.within(timeout, Some("sk-secret"))).unwrap_err();
        let found = match error {
            CompleteError::Refused(_) => "refused",
            CompleteError::Rejected(_) => "rejected",
            CompleteError::Transient { .. } => "transient",
        };
        assert!(found == kind && error.to_string().contains(expected), "{kind}: {error:?}");
        assert!(!format!("{error:?}").contains("sk-secret"), "{error:?}");
    }
}

#[test]
fn the_wait_that_is_asked_for_is_passed_on() {
    for (header, expected) in
        [("7", Some(7.0)), ("0.25", Some(0.25)), ("-1", None), ("NaN", None), ("Fri, 31 Dec", None)]
    {
        let server = ScriptedEndpoint::says(vec![(Some(429), Some(header), String::new())]);
        let Err(CompleteError::Transient { after, .. }) = ask(&server.endpoint(None)) else { panic!("{header}") };
        assert_eq!(after, expected.map(Duration::from_secs_f64), "{header}");
    }
}

#[test]
fn nobody_there_is_transient_and_nonsense_is_refused() {
    let server = ScriptedEndpoint::says(vec![said("", "stop")]);
    let url = server.url.clone();
    drop(server);
    let endpoint = |url: &str| ChatEndpoint::new(url, "m", None, Duration::from_secs(5), TrustedRoots::default());
    let unreachable = endpoint(&format!("{url}?key=secret")).unwrap();
    let error = ask(&unreachable).unwrap_err();
    assert!(matches!(error, CompleteError::Transient { .. }) && !error.to_string().contains("secret"), "{error}");
    let invalid = endpoint("host?key=secret").unwrap_err().to_string();
    assert!(invalid.contains("\"host\"") && !invalid.contains("secret"), "{invalid}");
    for url in ["", "http://?x", "localhost:80", "ftp://x", "http://", "https:///v1", "http://a b"] {
        assert!(endpoint(url).is_err(), "{url}");
    }
}

#[test]
fn the_newer_name_of_the_limit_is_learned_once() {
    let server = ScriptedEndpoint::start(|_, body| {
        if body.get("max_tokens").is_some() {
            refused(400, r#"{"error": {"message": "Use 'max_completion_tokens' instead."}}"#)
        } else {
            said("yes", "stop")
        }
    });
    let endpoint = server.endpoint(None);
    assert!(ask(&endpoint).is_ok() && ask(&endpoint).is_ok());
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn requests_side_by_side_all_learn_the_newer_name() {
    let together = Arc::new(std::sync::Barrier::new(2));
    let server = ScriptedEndpoint::start(move |_, body| {
        if body.get("max_tokens").is_none() {
            return said("yes", "stop");
        }
        // Neither is refused before the other has been sent.
        tokio::task::block_in_place(|| together.wait());
        refused(400, r#"{"error": {"message": "Use 'max_completion_tokens' instead."}}"#)
    });
    let endpoint = server.within(Duration::from_secs(20), None);
    std::thread::scope(|scope| {
        let both = [scope.spawn(|| ask(&endpoint)), scope.spawn(|| ask(&endpoint))];
        both.into_iter().for_each(|one| assert_eq!(one.join().unwrap().unwrap().text, "yes"));
    });
    assert_eq!(server.seen().len(), 4);
}

#[test]
fn a_key_that_straddles_the_cut_is_hidden() {
    let key = "sk-0123456789abcdef";
    for lead in 280..301 {
        let body = json!({"error": {"message": format!("{}{key} is wrong", "x".repeat(lead))}}).to_string();
        let server = ScriptedEndpoint::says(vec![refused(401, &body)]);
        let error = ask(&server.endpoint(Some(key))).unwrap_err().to_string();
        assert!(!error.contains("sk-"), "{lead}: {error}");
    }
}

fn numbered_passage(number: &u32) -> Passage {
    Passage { id: number.to_string(), title: format!("Title{number:03}"), text: "Some text.".into() }
}

/// A server in all sorts of trouble: every third request fails one way or another, and a few replies are broken.
#[test]
fn triples_come_through_trouble_and_a_second_run_asks_nothing() {
    let server = ScriptedEndpoint::start(|number, body| {
        let messages = body["messages"].as_array().unwrap();
        let question = messages.last().unwrap()["content"].as_str().unwrap();
        match number % 15 {
            3 => return (Some(429), Some("0.01"), String::new()),
            6 => return refused(500, "{"),
            9 => return said("I will not.", "stop"),
            12 => return (None, None, String::new()),
            _ => {}
        }
        if !question.contains("Passage:") {
            return said("```json\n{\"named_entities\": [\"a\"]}\n```", "stop");
        }
        let title = question.lines().nth(2).unwrap();
        let cut = number % 2 == 0;
        let text = format!("{{\"triples\": [[\"{title}\", \"is\", \"a\"]{}", if cut { ", [\"b" } else { "]}" });
        said(&text, if cut { "length" } else { "stop" })
    });
    let dir = tempfile::tempdir().unwrap();
    let options = EndpointOptions {
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(20),
        readings: 4,
        attempts: 8,
        journal: Some(dir.path().join("journal.jsonl")),
        ..EndpointOptions::default()
    };
    let numbers: Vec<u32> = (0..40).collect();
    let passages: Vec<Passage> = numbers.iter().map(numbered_passage).collect();
    let mut requests = 0;
    for run in 0..2 {
        // Some replies never come.
        let endpoint = server.within(Duration::from_secs(2), None);
        let extractor = Endpoint::new(Arc::new(endpoint), options.clone());
        let mut all = vec![Vec::new(); 40];
        let took = Instant::now();
        extractor
            .extract(&passages, &numbers, &mut |number, triples| {
                all[number as usize] = triples;
                Ok(())
            })
            .unwrap();
        for (number, triples) in all.iter().enumerate() {
            assert_eq!(*triples, [Triple::new(format!("Title{number:03}"), "is", "a")]);
        }
        let report = extractor.report();
        assert_eq!((report.passages, report.failed, report.reused), (40, 0, 40 * run));
        assert!(took.elapsed() < Duration::from_secs(120));
        if run == 0 {
            assert!(report.mended > 0 && report.retries > 10, "{report:?}");
            requests = server.seen().len();
        }
    }
    assert_eq!(server.seen().len(), requests);
}
