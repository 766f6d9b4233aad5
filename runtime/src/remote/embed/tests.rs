#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::remote::tests::{ScriptedEndpoint, ScriptedReply};

/// Time for the vector of a query.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Texts of a request in either form.
fn texts(body: &Value) -> Vec<String> {
    let texts = body.get("inputs").unwrap_or(&body["input"]).as_array().unwrap();
    texts.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Answers with a vector of the length of each text and 1, in the form of the request; OpenAI's last first.
fn by_length(body: &Value) -> ScriptedReply {
    let vectors = texts(body).into_iter().map(|text| json!([text.len(), 1]));
    let reply = match body.get("inputs") {
        Some(_) => vectors.collect::<Value>(),
        None => {
            let data = vectors.enumerate().map(|(index, embedding)| json!({"index": index, "embedding": embedding}));
            json!({"object": "list", "data": data.collect::<Vec<_>>().into_iter().rev().collect::<Value>()})
        }
    };
    (Some(200), None, reply.to_string())
}

fn unmeasured(server: &ScriptedEndpoint, path: &str) -> EmbedEndpoint {
    let url = format!("{}{path}", server.url.trim_end_matches("/v1"));
    EmbedEndpoint::new(&url, "m", None, TIMEOUT, TrustedRoots::default()).unwrap()
}

fn endpoint(server: &ScriptedEndpoint, path: &str) -> EmbedEndpoint {
    unmeasured(server, path).measured().unwrap()
}

fn seen(server: &ScriptedEndpoint) -> Vec<Value> {
    server.seen.lock().unwrap().iter().map(|(_, body)| body.clone()).collect()
}

#[test]
fn both_forms_are_spoken() {
    let server = ScriptedEndpoint::start(|_, body| by_length(body));
    for path in ["/v1/embeddings", "/embed", "", "/v1", "/v3/embeddings/"] {
        let endpoint = endpoint(&server, path);
        assert_eq!((endpoint.id(), endpoint.dims()), ("m", 2));
        assert_eq!(endpoint.embed(&["a", "abc", ""]).unwrap(), [[1.0, 1.0], [3.0, 1.0], [1.0, 1.0]], "{path}");
    }
    let bodies = seen(&server);
    let openai = json!({"model": "m", "input": ["a", "abc", " "], "encoding_format": "base64"});
    assert_eq!((&bodies[1], &bodies[5], &bodies[7], &bodies[9]), (&openai, &openai, &openai, &openai));
    assert_eq!(bodies[3], json!({"inputs": ["a", "abc", " "], "normalize": true, "truncate": true}));
    let refused = EmbedEndpoint::new("host/embed", "m", None, TIMEOUT, TrustedRoots::default());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("host/embed"), "{refused}");
}

#[test]
fn many_texts_are_sent_in_bounded_requests_of_which_few_are_in_flight() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let highest = Arc::clone(&most);
    let server = ScriptedEndpoint::start(move |_, body| {
        most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
        tokio::task::block_in_place(|| thread::sleep(Duration::from_millis(20)));
        running.fetch_sub(1, SeqCst);
        by_length(body)
    });
    let long: Vec<String> = (1..=40).map(|at| "x".repeat(at * 1000)).chain(["ü".repeat(MAX_EMBEDDED_BYTES)]).collect();
    let short: Vec<String> = (1..=700).map(|at| "y".repeat(at)).collect();
    for path in ["/embed", "/v1"] {
        let endpoint = endpoint(&server, path);
        let most_texts = if path == "/embed" { TEI_TEXTS } else { TEXTS };
        let all: Vec<&str> = long.iter().chain(&short).map(String::as_str).collect();
        // Several searches and a build at once share the bound.
        thread::scope(|scope| {
            let tasks: Vec<_> = (0..3).map(|_| scope.spawn(|| endpoint.embed_documents(&all).unwrap())).collect();
            for found in tasks.into_iter().map(|task| task.join().unwrap()) {
                let lengths: Vec<usize> = found.iter().map(|vector| vector[0] as usize).collect();
                let sent: Vec<usize> = all.iter().map(|text| text.len().min(MAX_EMBEDDED_BYTES)).collect();
                assert_eq!(lengths, sent);
            }
        });
        for body in seen(&server).iter().filter(|body| body.get("inputs").is_some() == (path == "/embed")) {
            let texts = texts(body);
            let bytes: usize = texts.iter().map(String::len).sum();
            assert!(texts.len() <= most_texts && (bytes <= REQUEST_BYTES || texts.len() == 1), "{bytes}");
        }
        assert_eq!(endpoint.least_batch(), DOCUMENT_SLOTS * most_texts);
    }
    let highest = highest.load(SeqCst);
    assert!((2..=DOCUMENT_SLOTS).contains(&highest), "{highest}");
}

#[test]
fn transient_failures_are_retried_within_the_time_of_a_query() {
    let server = ScriptedEndpoint::start(|number, body| match number {
        1 => (Some(500), None, "oops".to_owned()),
        2 => (Some(429), Some("0"), "slow down".to_owned()),
        3 => (Some(503), None, "busy".to_owned()),
        _ => by_length(body),
    });
    assert_eq!(endpoint(&server, "/v1").embed(&["ab"]).unwrap(), [[2.0, 1.0]]);
    assert_eq!(seen(&server).len(), 5);

    for (status, retry, once) in [(500, None, false), (429, Some("60"), true), (400, None, true), (401, None, true)] {
        let server = ScriptedEndpoint::start(move |number, body| match number {
            0 => by_length(body),
            _ => (Some(status), retry, "no".to_owned()),
        });
        let endpoint = endpoint(&server, "/embed");
        let started = Instant::now();
        let error = endpoint.embed(&["a"]).unwrap_err().to_string();
        assert!(error.contains("/embed") && error.contains(&status.to_string()), "{error}");
        assert!(started.elapsed() < 2 * TIMEOUT);
        let asked = seen(&server).len() - 1;
        assert_eq!(asked == 1, once, "{status}: {asked}");
    }
}

#[test]
fn a_silent_endpoint_and_one_that_is_away_fail_in_time() {
    let server = ScriptedEndpoint::start(|_, _| (None, None, String::new()));
    let started = Instant::now();
    let error = unmeasured(&server, "/embed").measured().unwrap_err().to_string();
    assert!(error.contains("no reply from http://127.0.0.1") && error.contains("/embed"), "{error}");
    assert!(started.elapsed() < 2 * TIMEOUT);
    let away = unmeasured(&server, "/v1");
    drop(server);
    let error = away.measured().unwrap_err().to_string();
    assert!(error.contains("cannot reach http://127.0.0.1") && error.contains("/v1/embeddings"), "{error}");
}

#[test]
fn replies_that_cannot_be_used_are_refused_with_the_url_and_the_model() {
    for (path, reply, said) in [
        ("/v1", json!({"data": []}), "no vector for index 0"),
        ("/v1", json!({"data": [{"index": 0, "embedding": [1, 2, 3]}]}), "vector 0 has 3 numbers instead of 2"),
        ("/v1", json!({"data": [{"index": 0, "embedding": "//////////8="}]}), "not finite"),
        ("/embed", json!([]), "0 vectors for 1 texts"),
        ("/embed", json!([[1, 2], [3, 4]]), "2 vectors for 1 texts"),
        ("/embed", json!([[1]]), "vector 0 has 1 numbers instead of 2"),
    ] {
        let server = ScriptedEndpoint::start(move |number, body| match number {
            0 => by_length(body),
            _ => (Some(200), None, reply.to_string()),
        });
        let error = endpoint(&server, path).embed(&["a"]).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("http://") && error.contains("the model m"), "{error}");
        assert_eq!(seen(&server).len(), 2, "{said}");
    }
}

#[test]
fn an_endpoint_without_base64_is_learned_once() {
    let server = ScriptedEndpoint::start(|_, body| match body.get("encoding_format") {
        Some(_) => (Some(400), None, json!({"error": {"message": "unknown field `encoding_format`"}}).to_string()),
        None => by_length(body),
    });
    let endpoint = endpoint(&server, "/v1");
    assert_eq!(endpoint.embed(&["abc"]).unwrap(), [[3.0, 1.0]]);
    assert_eq!(seen(&server).len(), 3);
}

#[test]
fn one_failure_among_many_requests_fails_all() {
    let server = ScriptedEndpoint::start(|_, body| match texts(body).iter().any(|text| text == "bad") {
        true => (Some(413), None, "too long".to_owned()),
        false => by_length(body),
    });
    let mut all = vec!["good"; 500];
    all[300] = "bad";
    let error = endpoint(&server, "/v1").embed(&all).unwrap_err().to_string();
    assert!(error.contains("413") && error.contains("too long"), "{error}");
}

#[test]
fn a_query_is_answered_while_documents_hold_all_their_slots() {
    let held = Arc::new(AtomicBool::new(true));
    let hold = Arc::clone(&held);
    let server = ScriptedEndpoint::start(move |_, body| {
        let documents = texts(body).len() > 1;
        tokio::task::block_in_place(|| {
            while documents && hold.load(SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
        });
        by_length(body)
    });
    let endpoint = endpoint(&server, "/embed");
    let documents = vec!["document"; DOCUMENT_SLOTS * TEI_TEXTS];
    thread::scope(|scope| {
        let commit = scope.spawn(|| endpoint.embed_documents(&documents));
        while seen(&server).len() < 1 + DOCUMENT_SLOTS {
            thread::sleep(Duration::from_millis(5));
        }
        let refused = endpoint.once(&["a", "b"], RequestPurpose::Documents, Duration::from_millis(20));
        let query = endpoint.embed(&["query"]);
        // Before anything is checked, so that a failure does not wait for the commit.
        held.store(false, SeqCst);
        let CompleteError::Transient { message, .. } = refused.unwrap_err() else { panic!("not transient") };
        assert!(message.starts_with("6 requests to http://") && message.ends_with("are running already"), "{message}");
        assert_eq!(query.unwrap(), [[5.0, 1.0]]);
        assert_eq!(commit.join().unwrap().unwrap().len(), documents.len());
    });
    // The refused request was not sent.
    assert_eq!(seen(&server).len(), 1 + DOCUMENT_SLOTS + 1);
}

#[test]
fn queries_fail_at_once_after_a_refused_connection_and_documents_wait_for_the_endpoint() {
    let server = ScriptedEndpoint::start(|_, body| by_length(body));
    let address = server.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let endpoint = endpoint(&server, "/v1");
    drop(server);
    // Keeps the port until the endpoint is back, so that no other test gets it.
    let port = tokio::net::TcpSocket::new_v4().unwrap();
    port.set_reuseaddr(true).unwrap();
    port.bind(address.parse().unwrap()).unwrap();
    let started = Instant::now();
    let first = endpoint.embed(&["a"]).unwrap_err().to_string();
    assert!(first.contains("cannot reach http://"), "{first}");
    assert!(started.elapsed() > FIRST_WAIT, "it was tried again");
    // Tried again, a query fails after three seconds. A machine that stands still for one forgets the refusal, and the
    // next query finds it.
    let fails_at_once = (0..3).any(|_| {
        let started = Instant::now();
        let next = endpoint.embed(&["a"]).unwrap_err();
        assert!(matches!(next.downcast_ref(), Some(CompleteError::Transient { .. })), "{next}");
        started.elapsed() < TIMEOUT / 2
    });
    assert!(fails_at_once);
    thread::scope(|scope| {
        let commit = scope.spawn(|| endpoint.embed_documents(&["abc"]));
        thread::sleep(Duration::from_millis(250));
        drop(port);
        let _server = ScriptedEndpoint::start_at(&address, |_, body| by_length(body));
        assert_eq!(commit.join().unwrap().unwrap(), [[3.0, 1.0]]);
        // The reply has shown that the endpoint is back.
        assert_eq!(endpoint.embed(&["ab"]).unwrap(), [[2.0, 1.0]]);
    });
}

#[test]
fn the_query_of_a_url_is_sent_and_never_shown() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let paths = [
        ("/v1/embeddings", "/v1/embeddings"),
        ("", "/v1/embeddings"),
        ("/v1/", "/v1/embeddings"),
        ("/embed", "/embed"),
    ];
    for (given, sent) in paths {
        let url = format!("http://{address}{given}?api-version=secret");
        let endpoint = EmbedEndpoint::new(&url, "m", None, Duration::from_secs(1), TrustedRoots::default()).unwrap();
        let error = endpoint.measured().unwrap_err().to_string();
        assert!(error.contains(&format!("http://{address}{sent} ")) && !error.contains("secret"), "{error}");
        let (socket, _) = listener.accept().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(socket), &mut line).unwrap();
        assert_eq!(line, format!("POST {sent}?api-version=secret HTTP/1.1\r\n"));
    }
}
