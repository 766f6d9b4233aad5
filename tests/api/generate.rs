//! `/inference/v1/generate`: token IDs in and out.

use serde_json::{Value, json};
use waymark_engine::MockBackend;

use crate::harness::{TestServer, answer, chunks, eventually};

const PATH: &str = "/inference/v1/generate";

/// Server whose tokens depend on every token before them.
async fn server() -> TestServer {
    TestServer::new(MockBackend::random(7, 259)).await
}

fn request(ids: &[u64], params: Value) -> Value {
    json!({"token_ids": ids, "sampling_params": params})
}

fn ids(choice: &Value) -> Vec<u64> {
    choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

async fn generate(server: &TestServer, session: Option<&str>, body: &Value) -> Value {
    let mut request = server.client.post(server.url(PATH)).json(body);
    if let Some(session) = session {
        request = request.header("x-session-id", session);
    }
    let (status, answer) = answer(request.send().await.unwrap()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

#[tokio::test]
async fn a_turn_of_a_session_computes_only_what_is_new() {
    let server = server().await;
    let mut sequence: Vec<u64> = (0..100).map(|id| id * 7 % 250).collect();
    let params = json!({"max_tokens": 16, "seed": 7, "logprobs": 2});
    let first = generate(&server, Some("s1"), &request(&sequence, params.clone())).await;
    let choice = &first["choices"][0];
    assert_eq!((&first["model"], &choice["finish_reason"]), (&json!("mock"), &json!("length")));
    assert_eq!(first["usage"]["total_tokens"], 116);
    assert_eq!(choice["weight_versions"][0]["end"], 16);
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 16);
    assert!(content.iter().all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 2));
    sequence.extend(ids(choice));
    sequence.extend([65, 66, 67]);
    let counters = server.state.runtime.engine.counters();
    // The response is sent before the session is parked.
    eventually("the session is parked", || counters.sessions_parked.get() == 1).await;
    let before = counters.prefill_tokens_total.get();
    let second = generate(&server, Some("s1"), &request(&sequence, params.clone())).await;
    // The last sampled token was never fed to the model, so it is computed with the three new ones.
    assert_eq!(counters.prefill_tokens_total.get() - before, 4);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 115);
    // The same sequence without a session gives the same tokens.
    let alone = generate(&server, None, &request(&sequence, params)).await;
    assert_eq!(alone["choices"][0]["token_ids"], second["choices"][0]["token_ids"]);
}

#[tokio::test]
async fn a_session_that_lost_its_blocks_reports_none_of_its_tokens_as_cached() {
    let server = TestServer::new(MockBackend::random(7, 259).with_blocks(16)).await;
    let mut sequence: Vec<u64> = (0..100).map(|id| id * 7 % 250).collect();
    let params = json!({"max_tokens": 16, "seed": 7});
    let first = generate(&server, Some("s1"), &request(&sequence, params.clone())).await;
    sequence.extend(ids(&first["choices"][0]));
    sequence.extend([65, 66, 67]);
    let counters = server.state.runtime.engine.counters();
    eventually("the session is parked", || counters.sessions_parked.get() == 1).await;
    // Fills and overwrites all 16 blocks.
    let other: Vec<u64> = (0..245).map(|id| id * 11 % 250).collect();
    generate(&server, None, &request(&other, json!({"max_tokens": 8, "ignore_eos": true}))).await;
    let before = counters.prefill_tokens_total.get();
    let second = generate(&server, Some("s1"), &request(&sequence, params)).await;
    assert_eq!(counters.prefill_tokens_total.get() - before, sequence.len() as u64);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn a_stream_carries_the_same_tokens_and_ends_with_its_usage() {
    let server = server().await;
    let params = json!({"max_tokens": 9, "temperature": 0, "logprobs": 0});
    let mut body = request(&[1, 2, 3], params);
    let whole = generate(&server, None, &body).await;
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let response = server.post(PATH, &body).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await.unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"));
    let mut chunks = chunks(&text);
    let usage = chunks.pop().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(9)));
    let streamed: Vec<u64> = chunks.iter().flat_map(|chunk| ids(&chunk["choices"][0])).collect();
    assert_eq!(streamed, ids(&whole["choices"][0]));
    let reasons = chunks.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null());
    assert_eq!(reasons.count(), 1);
    server.quiet().await;
}

#[tokio::test]
async fn scores_of_a_sequence_are_those_of_its_sampling() {
    let server = TestServer::new(MockBackend::random(7, 259).with_confidence(2.0)).await;
    let params = json!({"max_tokens": 12, "seed": 3, "logprobs": 1});
    let sampled = generate(&server, None, &request(&[9, 8, 7], params)).await;
    let mut sequence = vec![9, 8, 7];
    sequence.extend(ids(&sampled["choices"][0]));
    let scored = json!({"max_tokens": 1, "prompt_logprobs": 1});
    let scored = generate(&server, None, &request(&sequence, scored)).await;
    let scores = scored["prompt_logprobs"].as_array().unwrap();
    assert_eq!((scores.len(), &scores[0]), (15, &Value::Null));
    // The first three tokens are the prompt.
    for (entry, score) in sampled["choices"][0]["logprobs"]["content"].as_array().unwrap().iter().zip(&scores[3..]) {
        assert_eq!(score[entry["token_id"].to_string()]["logprob"], entry["logprob"]);
        let best = &entry["top_logprobs"][0];
        assert_eq!(score[best["token_id"].to_string()]["rank"], 1);
    }
}

#[tokio::test]
async fn stops_end_with_their_reason() {
    let server = TestServer::new(crate::harness::says("one two three")).await;
    let ask = |extra: Value| {
        let mut params = json!({"max_tokens": 50, "temperature": 0});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        request(&[65], params)
    };
    let stopped = generate(&server, None, &ask(json!({"stop": ["two", "x"]}))).await;
    assert_eq!(stopped["choices"][0]["stop_reason"], "two");
    assert_eq!(String::from_utf8_lossy(&bytes(&stopped)), "one two");
    let stopped = generate(&server, None, &ask(json!({"stop_token_ids": [116]}))).await;
    // 116 is the byte `t`.
    assert_eq!((&stopped["choices"][0]["stop_reason"], bytes(&stopped).as_slice()), (&json!(116), b"one t".as_slice()));
    let ended = generate(&server, None, &ask(json!({}))).await;
    assert_eq!(
        (&ended["choices"][0]["finish_reason"], &ended["choices"][0]["stop_reason"]),
        (&json!("stop"), &Value::Null)
    );
    let on = generate(&server, None, &ask(json!({"ignore_eos": true}))).await;
    assert_eq!((&on["choices"][0]["finish_reason"], ids(&on["choices"][0]).len()), (&json!("length"), 50));
    let allowed = generate(&server, None, &ask(json!({"allowed_token_ids": [65, 66], "max_tokens": 3}))).await;
    let allowed = ids(&allowed["choices"][0]);
    assert!(allowed.len() == 3 && allowed.iter().all(|id| [65, 66].contains(id)), "{allowed:?}");
    let late =
        json!({"allowed_token_ids": [66, 65, 66, 99_999], "stop_token_ids": [65], "min_tokens": 3, "max_tokens": 4});
    assert_eq!(ids(&generate(&server, None, &ask(late)).await["choices"][0]), [66, 66, 66, 65]);
}

#[tokio::test]
async fn a_line_with_a_label_ends_with_its_line_break() {
    let server = TestServer::new(crate::harness::says("No Query: here\nQuery: who?\nmore")).await;
    let params = json!({"max_tokens": 50, "temperature": 0, "stop": ["x"], "stop_lines": ["more", "Query:"]});
    let stopped = generate(&server, None, &request(&[65], params)).await;
    assert_eq!(String::from_utf8_lossy(&bytes(&stopped)), "No Query: here\nQuery: who?\n");
    assert_eq!(stopped["choices"][0]["stop_reason"], "Query:");
}

fn bytes(answer: &Value) -> Vec<u8> {
    ids(&answer["choices"][0]).into_iter().map(|id| u8::try_from(id).unwrap()).collect()
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let server = server().await;
    let counters = server.state.runtime.engine.counters();
    let before = counters.steps_total.get();
    for (body, status, param) in [
        (json!({"sampling_params": {}}), 400, "token_ids"),
        (json!({"token_ids": [], "sampling_params": {}}), 400, "token_ids"),
        (json!({"token_ids": [99999], "sampling_params": {}}), 400, "token_ids"),
        (json!({"token_ids": vec![1; 40_000], "sampling_params": {}}), 400, "token_ids"),
        (json!({"token_ids": vec![1; 40_000], "sampling_params": {"prompt_logprobs": 0}}), 400, "token_ids"),
        (json!({"token_ids": [1]}), 400, "sampling_params"),
        (json!({"token_ids": [1], "sampling_params": {"max_tokens": 0}}), 400, "sampling_params.max_tokens"),
        (json!({"token_ids": [1], "sampling_params": {"n": 2}}), 400, "sampling_params.n"),
        (json!({"token_ids": [1], "sampling_params": {"temperature": 3}}), 400, "sampling_params.temperature"),
        (json!({"token_ids": [1], "sampling_params": {"top_k": -2}}), 400, "sampling_params.top_k"),
        (json!({"token_ids": [1], "sampling_params": {"stop": [""]}}), 400, "sampling_params.stop[0]"),
        (json!({"token_ids": [1], "sampling_params": {"stop_lines": ["a\nb"]}}), 400, "sampling_params.stop_lines"),
        (
            json!({"token_ids": [1], "sampling_params": {"structured_outputs": {"grammar": "x"}}}),
            400,
            "sampling_params.structured_outputs",
        ),
        (json!({"token_ids": [1], "sampling_params": {"logprobs": 21}}), 400, "sampling_params.logprobs"),
        (
            json!({"token_ids": [1], "sampling_params": {"prompt_logprobs": 0}, "stream": true}),
            400,
            "sampling_params.prompt_logprobs",
        ),
        (
            json!({"token_ids": [1], "sampling_params": {"stop_token_ids": vec![1; 65]}}),
            400,
            "sampling_params.stop_token_ids",
        ),
        (
            json!({"token_ids": [1], "sampling_params": {"stop_token_ids": [99_999]}}),
            400,
            "sampling_params.stop_token_ids",
        ),
        (json!({"token_ids": [1], "sampling_params": {}, "model": "nobody"}), 404, "model"),
        (json!({"token_ids": [1], "sampling_params": {}, "nonsense": 1}), 400, "nonsense"),
        (json!({"token_ids": [1], "sampling_params": {}, "output_mode": "text"}), 400, "output_mode"),
        (json!({"token_ids": [1], "sampling_params": {}, "cache_salt": ""}), 400, "cache_salt"),
    ] {
        let (got, answer) = answer(server.post(PATH, &body).await).await;
        let shown = body.to_string().chars().take(120).collect::<String>();
        assert_eq!((got, &answer["error"]["param"]), (status, &json!(param)), "{shown}: {answer}");
    }
    assert_eq!(counters.steps_total.get(), before, "nothing is computed for a refusal");
}
