//! Transcripts, compared with `golden/*.txt`. `UPDATE_GOLDEN=1 cargo test --test api golden` rewrites them; review them
//! before committing.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use waymark_engine::EngineConfig;
use waymark_engine::mock::Lines;

use crate::harness::{ServerPlan, TestServer, answer, chunks, joined, says, script, with_fields};

/// Compares `text` with the golden file `name`.
pub fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/golden").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, known, "{} differs", path.display());
}

/// Removes everything that differs between runs from JSON.
pub fn steady(mut value: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    match name.as_str() {
                        "created" | "milliseconds" | "search_ms" | "cached_tokens" => *field = json!(0),
                        // Rounded, because the last digits of logarithms differ between platforms.
                        "logprob" => *field = json!((field.as_f64().unwrap() * 100.0).round() / 100.0),
                        "id" if field.as_str().is_some_and(|id| {
                            ["chatcmpl-", "cmpl-", "call_"].iter().any(|kind| id.starts_with(kind))
                        }) =>
                        {
                            *field = json!("ID")
                        }
                        "system_fingerprint" => *field = json!("FP"),
                        _ => walk(field),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut value);
    value
}

/// Formats a stream as lines, one per message.
pub fn transcript(stream: &str) -> String {
    let mut text = String::new();
    let all = chunks(stream);
    let first = &all[0];
    for chunk in &all {
        for field in ["id", "created", "model", "object"] {
            assert!(chunk.get("error").is_some() || chunk[field] == first[field], "{field} differs in {chunk}");
        }
        writeln!(text, "{}", steady(chunk.clone())).unwrap();
    }
    if stream.ends_with("data: [DONE]\n\n") {
        text += "[DONE]\n";
    }
    text
}

pub fn ask(extra: Value) -> Value {
    with_fields(json!({"model": "plain", "messages": [{"role": "user", "content": "hello"}]}), extra)
}

/// RouteRAG's loop: an invalid turn, a search, an answer.
pub fn loops() -> Lines {
    Lines::new([
        "<think>I do not know.</think>\nHm.",
        "<think>I must look.</think>\n<search>[passage] Faust</search>",
        "<think>Found.</think>\n<answer> Goethe </answer>",
    ])
    .terminator("</information>\n\n")
    .terminator("Let me try again.\n")
}

#[tokio::test]
async fn ok_stream_with_four_byte_utf8() {
    let server = TestServer::new(says("Wörld \u{1f600}!")).await;
    let stream = server.stream(&ask(json!({"stream": true}))).await;
    assert_eq!(joined(&chunks(&stream), "content")[&0], "Wörld \u{1f600}!");
    golden("ok_stream", &transcript(&stream));
}

#[tokio::test]
async fn ok_whole() {
    let server = TestServer::new(says("Wörld \u{1f600}!")).await;
    let (status, body) = server.chat(&ask(json!({}))).await;
    assert_eq!(status, 200);
    golden("ok_whole", &format!("{:#}\n", steady(body)));
}

#[tokio::test]
async fn the_alias_answers_the_same() {
    let server = TestServer::new(says("hi")).await;
    let (status, long) = server.chat(&ask(json!({}))).await;
    assert_eq!(status, 200, "{long}");
    let (status, short) = answer(server.post("/v1/chat", &ask(json!({}))).await).await;
    assert_eq!(status, 200, "{short}");
    assert_eq!(steady(long), steady(short));
}

#[tokio::test]
async fn loop_stream_with_trace() {
    let server = TestServer::new(script(&loops())).await;
    let body = ask(json!({"model": "routerag", "stream": true, "rag": {"trace": true},
                          "stream_options": {"include_usage": true}}));
    golden("loop_stream", &transcript(&server.stream(&body).await));
}

#[tokio::test]
async fn loop_whole_equals_its_stream() {
    let server = TestServer::new(script(&loops())).await;
    let (_, whole) = server.chat(&ask(json!({"model": "routerag", "rag": {"trace": true}}))).await;
    let whole = steady(whole);
    golden("loop_whole", &format!("{whole:#}\n"));
    let body = ask(json!({"model": "routerag", "rag": {"trace": true}, "stream": true}));
    let streamed: Vec<Value> = chunks(&server.stream(&body).await).into_iter().map(steady).collect();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], joined(&streamed, "content")[&0]);
    assert_eq!(message["reasoning_content"], joined(&streamed, "reasoning_content")[&0]);
    let steps: Vec<&Value> =
        streamed.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["rag"]["trace"].get(0)).collect();
    assert_eq!(message["rag"]["trace"], json!(steps));
}

#[tokio::test]
async fn without_the_option_no_trace_is_shown() {
    let server = TestServer::new(script(&loops())).await;
    let stream = server.stream(&ask(json!({"model": "routerag", "stream": true}))).await;
    assert!(!stream.contains("\"rag\"") && !stream.contains("usage"), "{stream}");
    let all = chunks(&stream);
    assert_eq!(joined(&all, "content")[&0], "Goethe");
    assert!(joined(&all, "reasoning_content")[&0].contains("I must look."));
}

#[tokio::test]
async fn length_stop() {
    let server = TestServer::new(says("0123456789")).await;
    golden("length_stop", &transcript(&server.stream(&ask(json!({"stream": true, "max_tokens": 4}))).await));
    let (_, whole) = server.chat(&ask(json!({"max_completion_tokens": 4}))).await;
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["choices"][0]["message"]["content"], "0123");
    assert_eq!(whole["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn stop_string_split_over_tokens() {
    // Every byte is a token of its own, so every stop string is split.
    let server = TestServer::new(says("one STO two STOP three")).await;
    let stream = server.stream(&ask(json!({"stream": true, "stop": ["STOP", "never"]}))).await;
    assert_eq!(joined(&chunks(&stream), "content")[&0], "one STO two ");
    golden("stop_string", &transcript(&stream));
    for (stop, content) in
        [(json!("STOP"), "one STO two "), (json!("one"), ""), (json!(["x", "three"]), "one STO two STOP ")]
    {
        let (_, whole) = server.chat(&ask(json!({"stop": stop}))).await;
        assert_eq!(whole["choices"][0]["message"]["content"], content);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn three_choices_interleaved() {
    let server = TestServer::new(says("abc")).await;
    let body = ask(json!({"stream": true, "n": 3, "stream_options": {"include_usage": true}}));
    let stream = server.stream(&body).await;
    // Choices interleave in any order; within each the order is fixed.
    let all = chunks(&stream);
    let mut text = String::new();
    for index in 0..3 {
        for chunk in all.iter().filter(|chunk| chunk["choices"][0]["index"] == index) {
            writeln!(text, "{}", steady(chunk.clone())).unwrap();
        }
    }
    let last = all.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    writeln!(text, "{}", steady(last.clone())).unwrap();
    golden("three_choices", &text);
    let (_, whole) = server.chat(&ask(json!({"n": 3}))).await;
    let indices: Vec<_> = whole["choices"].as_array().unwrap().iter().map(|choice| choice["index"].clone()).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert_eq!(whole["usage"]["completion_tokens"], last["usage"]["completion_tokens"]);
    assert_eq!(whole["usage"]["prompt_tokens"], last["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn choices_differ_by_seed_and_repeat_with_it() {
    let nonsense = waymark_engine::MockBackend::random(7, 259).with_confidence(0.0);
    let server = TestServer::new(nonsense).await;
    let body = ask(json!({"n": 3, "seed": 5, "max_tokens": 12}));
    let (_, first) = server.chat(&body).await;
    let (_, again) = server.chat(&body).await;
    let texts = |whole: &Value| -> Vec<Value> {
        whole["choices"].as_array().unwrap().iter().map(|choice| choice["message"].clone()).collect()
    };
    assert_eq!(texts(&first), texts(&again));
    assert_ne!(texts(&first)[0], texts(&first)[1]);
    let (_, single) = server.chat(&ask(json!({"seed": 5, "max_tokens": 12}))).await;
    assert_eq!(texts(&single)[0], texts(&first)[0]);
}

#[tokio::test]
async fn include_usage() {
    let server = TestServer::new(says("hi")).await;
    let body = ask(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let stream = server.stream(&body).await;
    golden("include_usage", &transcript(&stream));
    let all = chunks(&stream);
    let (last, others) = all.split_last().unwrap();
    assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
    assert_eq!(
        last["usage"]["total_tokens"],
        json!(last["usage"]["prompt_tokens"].as_u64().unwrap() + last["usage"]["completion_tokens"].as_u64().unwrap())
    );
}

#[tokio::test]
async fn logprobs_with_a_split_emoji() {
    let server = TestServer::new(says("a\u{1f600}")).await;
    let asked = json!({"logprobs": true, "top_logprobs": 1});
    let mut streaming = ask(asked.clone());
    streaming["stream"] = json!(true);
    let stream = server.stream(&streaming).await;
    golden("logprobs", &transcript(&stream));
    let (_, whole) = server.chat(&ask(asked)).await;
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(bytes, "a\u{1f600}".as_bytes());
    let streamed: Vec<Value> = chunks(&stream)
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&streamed, tokens);
    let (_, bare) = server.chat(&ask(json!({"logprobs": false}))).await;
    assert_eq!(bare["choices"][0].get("logprobs"), Some(&Value::Null));
}

#[tokio::test]
async fn empty_answer() {
    let server = TestServer::new(says("")).await;
    golden("empty_answer", &transcript(&server.stream(&ask(json!({"stream": true}))).await));
    let (status, whole) = server.chat(&ask(json!({}))).await;
    assert_eq!((status, &whole["choices"][0]["message"]["content"]), (200, &json!("")));
}

#[tokio::test]
async fn null_is_the_same_as_absent() {
    let server = TestServer::new(says("hi")).await;
    let mut body = ask(json!({}));
    for field in [
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "min_p",
        "modalities",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "rag",
        "reasoning_effort",
        "repetition_penalty",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    ] {
        body[field] = Value::Null;
    }
    for field in [
        "name",
        "refusal",
        "tool_calls",
        "function_call",
        "tool_call_id",
        "audio",
        "annotations",
        "reasoning_content",
        "reasoning",
        "rag",
    ] {
        body["messages"][0][field] = Value::Null;
    }
    let (status, whole) = server.chat(&body).await;
    assert_eq!(status, 200, "{whole}");
    assert_eq!(steady(whole), steady(server.chat(&ask(json!({}))).await.1));
}

#[tokio::test]
async fn an_error_before_the_first_byte_has_a_status() {
    let backend = says(&"long ".repeat(6000)).with_time(std::time::Duration::from_millis(5), std::time::Duration::ZERO);
    let engine = EngineConfig { max_batch_rows: 1, max_waiting: 1, ..EngineConfig::default() };
    let server = ServerPlan { engine, ..ServerPlan::new(backend) }.build().await;
    let body = ask(json!({"stream": true}));
    let running = server.raw("/v1/chat/completions", &body).await;
    let counters = server.state.runtime.engine.counters();
    crate::harness::eventually("one runs", || counters.sessions_running.get() == 1).await;
    let waiting = server.raw("/v1/chat/completions", &body).await;
    crate::harness::eventually("one waits", || counters.sessions_waiting.get() == 1).await;
    let refused = server.post("/v1/chat/completions", &body).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(refused.headers()["content-type"], "application/json");
    assert!(refused.headers().contains_key("x-request-id"));
    golden("queue_full", &format!("{:#}\n", refused.json::<Value>().await.unwrap()));
    drop((running, waiting));
    server.quiet().await;
}

#[tokio::test]
async fn an_error_in_the_middle_ends_the_stream_without_a_finish() {
    // Slow enough for the stream to have begun before the fault.
    let backend = says("abcdefgh").with_time(std::time::Duration::from_millis(150), std::time::Duration::ZERO);
    let poison = crate::harness::tokenizer().id("d").unwrap_or(u32::from(b'd'));
    backend.faults().nan_on(poison);
    let server = TestServer::new(backend).await;
    let stream = server.stream(&ask(json!({"stream": true}))).await;
    golden("error_in_the_middle", &transcript(&stream));
    assert!(!stream.contains("[DONE]") && !stream.contains("\"finish_reason\":\"stop\""));
    let (status, whole) = server.chat(&ask(json!({}))).await;
    assert_eq!((status, &whole["error"]["code"]), (500, &json!("internal_error")));
    server.quiet().await;
}

#[tokio::test]
async fn cached_prompt_tokens_are_told() {
    let server = TestServer::new(says("hi")).await;
    let cached =
        async || server.chat(&ask(json!({}))).await.1["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached().await, 0);
    // Whole blocks are shared, and the prompt fills one.
    assert_eq!(cached().await, 16);
}
