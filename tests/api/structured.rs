//! `response_format`: answers are JSON, whatever the policy would have said.

use serde_json::{Map, Value, json};
use waymark_agent::Policy;
use waymark_engine::MockBackend;
use waymark_engine::mock::Lines;
use waymark_index::Mode;

use crate::golden::ask;
use crate::harness::{ServerPlan, TestServer, answer, chunks, content, joined, says, script, tokenizer};
use crate::traces::trace;

/// Schema that a policy ignorant of it can satisfy in a few tokens.
fn verdict() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "verdict", "strict": true, "schema": {
        "type": "object",
        "properties": {"known": {"type": "boolean"}, "who": {"enum": ["Goethe", "Schiller"]}},
        "required": ["known", "who"],
        "additionalProperties": false,
    }}})
}

fn check(content: &str) {
    let value: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{content:?}: {error}"));
    assert!(value["known"].is_boolean() && ["Goethe", "Schiller"].contains(&value["who"].as_str().unwrap()), "{value}");
}

const SAID: &str = r#"{"known": true, "who": "Goethe"}"#;

#[tokio::test]
async fn a_reply_that_fits_is_left_as_it_is() {
    let server = TestServer::new(says(SAID)).await;
    for format in [verdict(), json!({"type": "json_object"}), json!({"type": "text"})] {
        let (status, whole) = server.chat(&ask(json!({"response_format": format}))).await;
        assert_eq!((status, content(&whole)), (200, SAID), "{format}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn a_reply_that_does_not_is_made_to() {
    let server = TestServer::new(says("Certainly! Here is the JSON: no")).await;
    let body = ask(json!({"response_format": verdict(), "n": 3, "seed": 1}));
    let (status, whole) = server.chat(&body).await;
    assert_eq!(status, 200, "{whole}");
    for choice in whole["choices"].as_array().unwrap() {
        check(choice["message"]["content"].as_str().unwrap());
        assert_eq!(choice["finish_reason"], "stop");
    }
    let mut streaming = body.clone();
    streaming["stream"] = json!(true);
    let texts = joined(&chunks(&server.stream(&streaming).await), "content");
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        // The constraint must not depend on how the response is delivered.
        assert_eq!(choice["message"]["content"], texts[&(index as u64)], "the same seed gives the same");
    }
    server.quiet().await;
}

#[tokio::test]
async fn an_episode_with_its_trace_can_be_asked_for_it_too() {
    let said = "<think>Found.</think>\n<answer> Goethe </answer>";
    let server = TestServer::new(script(&Lines::new([said]).terminator("</information>\n\n"))).await;
    let ask = async |format: Value| {
        let body = json!({"question": "Who wrote Faust?", "model": "routerag", "response_format": format});
        let response = server.post("/v1/agent", &body).await;
        answer(response).await
    };
    let (status, whole) = ask(verdict()).await;
    assert_eq!((status, &whole["finish_reason"]), (200, &json!("stop")), "{whole}");
    check(whole["answer"].as_str().unwrap());
    assert_eq!(ask(json!({"type": "text"})).await.1["answer"], "Goethe");
    for (format, param) in [
        (json!({"type": "json_schema"}), "response_format.json_schema"),
        (
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}),
            "response_format",
        ),
    ] {
        let (status, refused) = ask(format).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
}

#[tokio::test]
async fn a_trace_says_what_was_asked_for() {
    let server = TestServer::new(says(SAID)).await;
    let schema = verdict()["json_schema"]["schema"].clone();
    for (format, told) in [
        (verdict(), schema.clone()),
        (json!({"type": "json_object"}), json!({"type": "object"})),
        (json!({"type": "text"}), Value::Null),
    ] {
        let (_, whole) = server.chat(&ask(json!({"response_format": format}))).await;
        let (status, kept) = trace(&server, whole["id"].as_str().unwrap()).await;
        assert_eq!((status, &kept["options"]["json"]), (200, &told), "{format}");
    }
    // The youngest is the first.
    let list: Value = server.get("/v1/traces").await.json().await.unwrap();
    let bytes = |at: usize| list["data"][at]["bytes"].as_u64().unwrap();
    let text = bytes(0);
    let held = bytes(2);
    let length = schema.to_string().len() as u64;
    assert!(held > text + length, "{held} and {text}");
}

#[tokio::test]
async fn of_a_loop_only_the_final_answer_is_held_to_it() {
    let turns = |answer: &str| {
        let answer = format!("<think>Found {{.</think>\n<answer>{answer}</answer>");
        Lines::new(["<think>I must look.</think>\n<search>[passage] Faust</search>", &answer])
            .terminator("</information>\n\n")
    };
    let body = ask(json!({"model": "routerag", "response_format": verdict(), "rag": {"trace": true}}));
    for (said, fits) in [(SAID, true), (" Goethe ", false)] {
        let server = TestServer::new(script(&turns(said))).await;
        let (status, whole) = server.chat(&body).await;
        assert_eq!(status, 200, "{whole}");
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "I must look.\n\nFound {.\n");
        assert_eq!(message["rag"]["trace"][0]["query"], "Faust");
        check(content(&whole));
        assert_eq!(content(&whole) == SAID, fits);
    }
}

#[tokio::test]
async fn an_answer_that_no_tag_closes_ends_with_its_json() {
    let fits = format!("Final answer:{SAID}");
    let not = "Final answer: Goethe ".to_owned();
    for (backend, guided, said) in [
        (says(&fits), false, Some(SAID)),
        (says(&not), false, None),
        // Labels in the middle of a line neither end the constraint of the turn nor begin an answer.
        (says(&format!("Summary: The Subquery: x is settled.\n{not}")), false, None),
        (says(&format!("Summary: A Final answer: is near.\n{fits}")), false, Some(SAID)),
        (MockBackend::random(5, tokenizer().vocab()).with_confidence(2.0), true, None),
    ] {
        let mut plan = ServerPlan::new(backend);
        let mut policy = Policy::builtin("tearag").unwrap();
        policy.retrieval.search.mode = Some(Mode::Passage);
        plan.policies.push(policy);
        let server = plan.build().await;
        let body = ask(json!({"model": "tearag", "response_format": verdict(), "rag": {"guided": guided}, "seed": 1}));
        let (status, whole) = server.chat(&body).await;
        assert_eq!(status, 200, "{whole}");
        check(content(&whole));
        assert!(said.is_none_or(|said| content(&whole) == said), "{whole}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        server.quiet().await;
    }
}

#[tokio::test]
async fn a_tag_inside_a_string_does_not_end_the_answer() {
    let turns = ["<think>Hm.</think>\n<search>Faust</search>", "<answer>{\"who\": \"Goethe</answer>"];
    let server = TestServer::new(script(&Lines::new(turns).terminator("</information>\n\n"))).await;
    let schema = json!({"type": "object", "properties": {"who": {"type": "string", "maxLength": 12}},
                        "required": ["who"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "who", "schema": schema}});
    let (_, whole) = server.chat(&ask(json!({"model": "routerag", "response_format": format}))).await;
    let value: Value = serde_json::from_str(content(&whole)).unwrap_or_else(|error| panic!("{error}: {whole}"));
    assert!(value["who"].as_str().unwrap().starts_with("Goethe"), "{value}");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn an_answer_that_had_to_be_asked_for_is_held_to_the_schema() {
    let lines = Lines::new([
        "<think>Hm.</think>\n<search>[passage] Faust</search>",
        "<think>Hm.</think>\n<search>more</search>",
    ])
    .terminator("</information>\n\n");
    let server = TestServer::new(script(&lines)).await;
    let rag = json!({"budget": {"turns": 1}});
    let (_, whole) = server.chat(&ask(json!({"model": "routerag", "response_format": verdict(), "rag": rag}))).await;
    check(content(&whole));
}

#[tokio::test]
async fn a_guided_answer_is_held_to_the_schema() {
    let server = TestServer::new(script(&Lines::new(["whatever it may say"]))).await;
    let body = ask(json!({"model": "routerag", "response_format": verdict(), "rag": {"guided": true}}));
    let (status, whole) = server.chat(&body).await;
    assert_eq!(status, 200, "{whole}");
    check(content(&whole));
}

#[tokio::test]
async fn what_does_not_fit_the_bound_is_cut_and_says_so() {
    let server = TestServer::new(says(SAID)).await;
    let (_, whole) = server.chat(&ask(json!({"response_format": verdict(), "max_tokens": 9}))).await;
    assert_eq!((content(&whole), &whole["choices"][0]["finish_reason"]), (&SAID[..9], &json!("length")));
}

#[tokio::test]
async fn formats_that_make_no_sense_are_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let deep = (0..60).fold(json!({}), |inner, _| json!({"items": inner}));
    const SCHEMA: &str = "response_format.json_schema";
    for (format, param) in [
        (schema(json!({"type": "nonsense"})), "response_format"),
        (schema(json!({"type": "string", "pattern": "("})), "response_format"),
        (schema(json!({"$ref": "#/nowhere"})), "response_format"),
        (schema(json!(["no object"])), "response_format"),
        (schema(deep), "response_format"),
        (schema(json!({"description": "x".repeat(70_000)})), "response_format"),
        (schema(json!({"x-guidance": {"lenient": true}})), "response_format"),
        (json!({"type": "json_schema"}), SCHEMA),
        (json!({"type": "json_object", "json_schema": {"name": "x"}}), SCHEMA),
        (json!({"type": "json_schema", "json_schema": {}}), "response_format.json_schema.name"),
        (json!({"type": "json_schema", "json_schema": {"name": "a b"}}), "response_format.json_schema.name"),
        (
            json!({"type": "json_schema", "json_schema": {"name": "x", "colour": 1}}),
            "response_format.json_schema.colour",
        ),
        (json!({"type": "grammar"}), "response_format.type"),
        (json!({}), "response_format.type"),
        (json!("json"), "response_format"),
    ] {
        let (status, answer) = server.chat(&ask(json!({"response_format": format}))).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{format} gave {answer}");
    }
    server.quiet().await;
}

#[tokio::test]
async fn responses_are_held_to_a_schema_as_well() {
    let server = TestServer::new(says("Certainly! Here is the JSON: no")).await;
    let mut format = verdict()["json_schema"].clone();
    format["type"] = json!("json_schema");
    let body = json!({"model": "plain", "input": "Who?", "seed": 1, "text": {"format": format, "verbosity": "medium"}});
    let response: Value = server.post("/v1/responses", &body).await.json().await.unwrap();
    assert_eq!((&response["status"], &response["text"]["format"]), (&json!("completed"), &format), "{response}");
    let items = response["output"].as_array().unwrap();
    check(items.last().unwrap()["content"][0]["text"].as_str().unwrap());
}

/// Schemas whose first mask is cheap and whose next ones exceed the work limit.
#[tokio::test]
async fn a_schema_that_takes_too_much_work_is_the_clients_fault() {
    let server = TestServer::new(says("no")).await;
    let optional: Value =
        (0..1_500).map(|at| (format!("p{at}"), json!({"type": "string"}))).collect::<Map<_, _>>().into();
    for schema in [
        json!({"type": "string", "pattern": "[^\\x00-\\x10]{0,5000}x"}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "[^\\x00-\\x10]{0,5000}x"}}}),
        json!({"type": "object", "properties": optional}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        for stream in [false, true] {
            let response =
                server.post("/v1/chat/completions", &ask(json!({"response_format": format, "stream": stream}))).await;
            let status = response.status().as_u16();
            let text = response.text().await.unwrap();
            // An error that appears only after the first tokens is of the same kind.
            let named = text.contains("\"code\":\"invalid_value\"") && text.contains("\"param\":\"response_format\"");
            let failed = text.contains("\"error\":");
            let expected = if failed { named && [200, 400].contains(&status) } else { status == 200 };
            assert!(expected, "{stream} {status} {text}");
        }
    }
    server.quiet().await;
}
