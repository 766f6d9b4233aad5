//! `/v1/completions`: texts continued verbatim.

use serde_json::{Value, json};
use waymark_engine::mock::Lines;

use crate::golden::{golden, steady, transcript};
use crate::harness::{TestServer, chunks, says, script, with_fields};

const PATH: &str = "/v1/completions";

fn ask(extra: Value) -> Value {
    with_fields(json!({"model": "plain", "prompt": "Once", "max_tokens": 100}), extra)
}

async fn whole(server: &TestServer, extra: Value) -> Value {
    let response = server.post(PATH, &ask(extra)).await;
    let status = response.status();
    let answer = response.json::<Value>().await.unwrap();
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn stream(server: &TestServer, mut extra: Value) -> String {
    extra["stream"] = json!(true);
    let response = server.post(PATH, &ask(extra)).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    response.text().await.unwrap()
}

fn texts(answer: &Value) -> Vec<&str> {
    answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_text_goes_on() {
    let server = TestServer::new(says(" upon a <think>t\u{ef}me")).await;
    let answer = whole(&server, json!({})).await;
    golden("completion_whole", &format!("{:#}\n", steady(answer)));
    let streamed = stream(&server, json!({"stream_options": {"include_usage": true}, "max_tokens": 3})).await;
    golden("completion_stream", &transcript(&streamed));
    let short = whole(&server, json!({"max_tokens": null})).await;
    // OpenAI's default for this route.
    assert_eq!(short["usage"]["completion_tokens"], 16);
    assert_eq!(short["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_policy_that_searches_does_not_do_so_here() {
    let server = TestServer::new(script(&Lines::new(["<search>x</search> and <answer>y</answer>"]))).await;
    let answer = whole(&server, json!({"model": "routerag"})).await;
    assert_eq!(texts(&answer), ["<search>x</search> and <answer>y</answer>"]);
}

#[tokio::test]
async fn prompts_come_as_text_or_ids_one_or_several() {
    let lines = Lines::new(["?"]).rule("Once", [" upon"]).rule("Twice", [" told"]);
    let server = TestServer::new(script(&lines)).await;
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    for (prompt, wanted) in [
        (json!("Once"), vec![" upon"]),
        (json!(["Twice"]), vec![" told"]),
        (json!(ids("Once")), vec![" upon"]),
        (json!([ids("Twice"), ids("Once")]), vec![" told", " upon"]),
    ] {
        assert_eq!(texts(&whole(&server, json!({"prompt": prompt})).await), wanted, "{prompt}");
    }
    let answer = whole(&server, json!({"prompt": ["Once", "Twice", "Never"], "n": 2, "echo": true})).await;
    assert_eq!(texts(&answer), ["Once upon", "Once upon", "Twice told", "Twice told", "Never?", "Never?"]);
    let indices: Vec<_> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["index"].clone()).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
    assert_eq!(answer["usage"]["prompt_tokens"], 4 + 5 + 5, "each prompt counts once");
    let streamed = chunks(&stream(&server, json!({"prompt": ["Once", "Twice"], "echo": true})).await);
    for (index, wanted) in ["Once upon", "Twice told"].iter().enumerate() {
        let of = |chunk: &&Value| chunk["choices"][0]["index"] == index;
        let text: String =
            streamed.iter().filter(of).map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(&text, wanted);
        let ends = streamed.iter().filter(of).filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop").count();
        assert_eq!(ends, 1);
    }
}

#[tokio::test]
async fn tokens_with_their_log_probabilities() {
    let server = TestServer::new(says("a\u{1f600}b")).await;
    let answer = whole(&server, json!({"logprobs": 1})).await;
    golden("completion_logprobs", &format!("{:#}\n", steady(answer.clone())));
    let logprobs = &answer["choices"][0]["logprobs"];
    // Offsets count characters, and four tokens write the emoji.
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 1, 1, 2]));
    let streamed = chunks(&stream(&server, json!({"logprobs": 1})).await);
    for list in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        let all: Vec<Value> = streamed
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["logprobs"][list].as_array().cloned())
            .flatten()
            .collect();
        assert_eq!(&json!(all), &logprobs[list], "{list}");
    }
    let bare = whole(&server, json!({"logprobs": 0})).await;
    assert_eq!(bare["choices"][0]["logprobs"]["top_logprobs"], Value::Null);
    assert_eq!(whole(&server, json!({})).await["choices"][0].get("logprobs"), Some(&Value::Null));
}

#[tokio::test]
async fn stop_strings_and_seeds() {
    let server = TestServer::new(says(" upon a time")).await;
    assert_eq!(texts(&whole(&server, json!({"stop": "time"})).await), [" upon a "]);
    let nonsense = waymark_engine::MockBackend::random(7, 259).with_confidence(0.0);
    let server = TestServer::new(nonsense).await;
    let sample = json!({"seed": 3, "n": 2, "max_tokens": 8});
    let first = whole(&server, sample.clone()).await;
    let again = whole(&server, sample).await;
    assert_eq!(texts(&first), texts(&again));
    assert_ne!(texts(&first)[0], texts(&first)[1]);
    // A prompt in a list is answered as it is alone: with a seed of its own, unless the request gives one.
    let seeded = whole(&server, json!({"prompt": ["x", "x"], "seed": 3, "max_tokens": 8})).await;
    assert_eq!(texts(&seeded)[0], texts(&seeded)[1]);
    let drawn = whole(&server, json!({"prompt": ["x", "x"], "max_tokens": 32})).await;
    assert_ne!(texts(&drawn)[0], texts(&drawn)[1]);
    assert_eq!(texts(&whole(&server, json!({"top_p": 0, "logit_bias": {"65": 50}, "max_tokens": 3})).await), ["AAA"]);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    for (change, status, code, param) in [
        (json!({"model": "nobody"}), 404, "model_not_found", "model"),
        (json!({"prompt": ""}), 400, "invalid_value", "prompt"),
        (json!({"prompt": []}), 400, "invalid_value", "prompt"),
        (json!({"prompt": [[]]}), 400, "invalid_value", "prompt"),
        (json!({"prompt": [1, 259]}), 400, "invalid_value", "prompt"),
        (json!({"prompt": [1, -1]}), 400, "invalid_value", "prompt"),
        (json!({"prompt": null}), 400, "invalid_value", "prompt"),
        (json!({"prompt": "x".repeat(40_000)}), 400, "context_length_exceeded", "prompt"),
        (json!({"prompt": vec!["a"; 40], "n": 2}), 400, "invalid_value", "prompt"),
        (json!({"suffix": "x"}), 400, "unsupported_parameter", "suffix"),
        (json!({"best_of": 2}), 400, "unsupported_parameter", "best_of"),
        (json!({"echo": true, "logprobs": 1}), 400, "unsupported_parameter", "logprobs"),
        (json!({"logprobs": 6}), 400, "invalid_value", "logprobs"),
        (json!({"logprobs": true}), 400, "invalid_value", "logprobs"),
        (json!({"max_tokens": 0}), 400, "invalid_value", "max_tokens"),
        (json!({"n": 0}), 400, "invalid_value", "n"),
        (json!({"temperature": 3}), 400, "invalid_value", "temperature"),
        (json!({"stream_options": {"include_usage": true}}), 400, "invalid_value", "stream_options"),
        (json!({"messages": []}), 400, "unknown_parameter", "messages"),
    ] {
        let response = server.post(PATH, &ask(change.clone())).await;
        let got = response.status().as_u16();
        let answer = response.json::<Value>().await.unwrap();
        let error = &answer["error"];
        assert_eq!((got, &error["code"], &error["param"]), (status, &json!(code), &json!(param)), "{change}: {answer}");
    }
    let harmless = json!({"suffix": null, "best_of": 1, "logprobs": null, "echo": false, "stop": null, "user": null});
    assert_eq!(texts(&whole(&server, harmless).await), ["hi"]);
    server.quiet().await;
}
