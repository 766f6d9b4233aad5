#![allow(clippy::unwrap_used)]

use super::*;
use crate::remote::tests::ScriptedEndpoint;

/// Time of a request, which no endpoint exceeds in a test that does not set another.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Reply that scores each text by its length over 10, last first.
fn by_length(body: &Value, name: &str, score: &str) -> Vec<Value> {
    let texts = body[name].as_array().unwrap().iter().enumerate();
    let scored = texts.map(|(index, text)| json!({"index": index, score: text.as_str().unwrap().len() as f64 / 10.0}));
    let mut scored: Vec<Value> = scored.collect();
    scored.reverse();
    scored
}

fn endpoint(server: &ScriptedEndpoint, path: &str) -> RerankEndpoint {
    within(TIMEOUT, server, path)
}

/// Returns an endpoint that has to answer each request within `timeout`.
fn within(timeout: Duration, server: &ScriptedEndpoint, path: &str) -> RerankEndpoint {
    let url = format!("{}{path}", server.url.trim_end_matches("/v1"));
    RerankEndpoint::new(&url, Some("m".to_owned()), None, timeout, TrustedRoots::default()).unwrap()
}

fn relevances(scores: &[RerankScore]) -> Vec<f32> {
    scores.iter().map(|score| score.relevance).collect()
}

#[test]
fn both_forms_are_spoken() {
    let server = ScriptedEndpoint::start(|_, body| {
        let reply = match body.get("texts") {
            Some(_) => json!(by_length(body, "texts", "score")),
            None => json!({"id": "x", "results": by_length(body, "documents", "relevance_score"), "meta": {}}),
        };
        (Some(200), None, reply.to_string())
    });
    for path in ["/v1/rerank", "/rerank", "", "/v1", "/v2/rerank/"] {
        let scores = endpoint(&server, path).rerank("q", &["a", "abc", ""]).unwrap();
        assert_eq!(relevances(&scores), [0.1, 0.3, 0.0], "{path}");
    }
    let bodies: Vec<Value> = server.seen.lock().unwrap().iter().map(|(_, body)| body.clone()).collect();
    let documents = json!(["a", "abc", ""]);
    let cohere = json!({"model": "m", "query": "q", "documents": documents, "top_n": 3, "return_documents": false});
    assert_eq!(bodies[0], cohere);
    assert_eq!(bodies[1], json!({"query": "q", "texts": documents, "raw_scores": false, "truncate": true}));
    assert_eq!((&bodies[2], &bodies[3]), (&cohere, &cohere));
    assert!(bodies[4].get("return_documents").is_none());
    // Batches of text-embeddings-inference are small.
    let many = vec!["abcd"; 70];
    assert_eq!(endpoint(&server, "/rerank").rerank("q", &many).unwrap().len(), 70);
    assert_eq!(server.seen.lock().unwrap().len(), 5 + 3);
}

#[test]
fn raw_scores_become_relevances() {
    let reply = json!({"results": [{"index": 0, "relevance_score": 0.5}, {"index": 1, "relevance_score": -3.0}]});
    let server = ScriptedEndpoint::start(move |_, _| (Some(200), None, reply.to_string()));
    let scores = endpoint(&server, "/v1/rerank").rerank("q", &["a", "b"]).unwrap();
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(&score.relevance)));
    assert_eq!(scores.iter().map(|score| score.logit).collect::<Vec<_>>(), [Some(0.5), Some(-3.0)]);
}

#[test]
fn transient_failures_are_retried_within_the_time_of_one_request() {
    let reply = json!({"results": [{"index": 0, "relevance_score": 0.5}]}).to_string();
    let server = ScriptedEndpoint::start(move |number, _| match number {
        0 => (Some(503), None, "busy".to_owned()),
        1 => (Some(429), Some("0"), "busy".to_owned()),
        _ => (Some(200), None, reply.clone()),
    });
    assert_eq!(relevances(&endpoint(&server, "/v1/rerank").rerank("q", &["a"]).unwrap()), [0.5]);
    assert_eq!(server.seen.lock().unwrap().len(), 3);

    for (status, retry, expected) in [(503, None, 3), (503, Some("60"), 1), (400, None, 1), (401, None, 1)] {
        let server = ScriptedEndpoint::start(move |_, _| (Some(status), retry, "no".to_owned()));
        let error = endpoint(&server, "/v1/rerank").rerank("q", &["a"]).unwrap_err().to_string();
        assert!(error.contains("/v1/rerank") && error.contains(&status.to_string()), "{error}");
        assert_eq!(server.seen.lock().unwrap().len(), expected, "{status}");
    }
}

#[test]
fn each_request_of_one_reranking_has_the_whole_time() {
    let timeout = Duration::from_secs(4);
    let server = ScriptedEndpoint::start(move |_, body| {
        thread::sleep(timeout * 3 / 10);
        (Some(200), None, json!(by_length(body, "texts", "score")).to_string())
    });
    // The four requests together take longer than one may take.
    assert_eq!(within(timeout, &server, "/rerank").rerank("q", &["a"; 128]).unwrap().len(), 128);
    assert_eq!(server.seen.lock().unwrap().len(), 4);
}

#[test]
fn a_timeout_shorter_than_a_wait_is_kept() {
    let server = ScriptedEndpoint::start(|_, _| (None, None, String::new()));
    let endpoint = within(Duration::from_millis(10), &server, "/rerank");
    let error = endpoint.rerank("q", &["a"]).unwrap_err().to_string();
    assert!(error.contains("no reply from") && error.contains("within 0.0 s"), "{error}");
}

#[test]
fn replies_that_do_not_score_every_document_once_are_refused() {
    for (reply, expected) in [
        (json!({"results": []}), "no score for index 0"),
        (json!({"results": [{"index": 2, "relevance_score": 0.5}]}), "index 2 of 1 documents"),
        (json!({"results": [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 1}]}), "index 0 twice"),
        (json!([{"index": 0, "score": 0.5}]), "not a reranking"),
    ] {
        let server = ScriptedEndpoint::start(move |_, _| (Some(200), None, reply.to_string()));
        let error = endpoint(&server, "/v1/rerank").rerank("q", &["a"]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(server.seen.lock().unwrap().len(), 1);
    }
    let refused = RerankEndpoint::new("host/rerank", None, None, TIMEOUT, TrustedRoots::default());
    assert!(refused.unwrap_err().to_string().contains("host/rerank"));
}
