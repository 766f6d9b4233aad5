//! Policies that backtrack, and policies that refuse to answer, as clients see them.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark_agent::{Policy, Search, SearchError, SearchQuery};
use waymark_engine::mock::Lines;
use waymark_index::{Evidence, Hit, HitPath, Mode, Passage};

use crate::harness::{ServerPlan, TestServer, chunks, joined, says, script};
use crate::replay::check_equal;

const REFUSAL: &str = "The passages do not say.";

/// Searcher that finds a passage named after the query.
#[derive(Debug)]
struct Named;

impl Search for Named {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let id = query.wanted.text.clone();
        let passage = Passage { title: id.clone(), id, text: "Goethe wrote Faust.".into() };
        let hits = vec![Hit { rank: 1, score: 0.5, passage, metadata: None, path: HitPath::default() }];
        Box::pin(async move { Ok(Evidence::of(3, query.wanted.mode, hits)) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

async fn test_server() -> TestServer {
    let refusal = format!("<think>No.</think>\n<refuse> {REFUSAL} </refuse>");
    let lines = Lines::new(["<think>Who?</think>\n<search>one</search>", &refusal])
        .rule(
            "Faust",
            [
                "<search>one</search>",
                "<think>No.</think>\n<backtrack></backtrack>",
                "<search>two</search>",
                "<answer>Goethe wrote Faust.</answer>",
            ],
        )
        .terminator("</information>\n\n");
    let mut plan = ServerPlan { searcher: Some(Arc::new(Named)), ..ServerPlan::new(script(&lines)) };
    let mut policy = Policy::builtin("evo-rag").unwrap();
    policy.budget.context_tokens = 16_384;
    plan.policies.push(policy);
    plan.build().await
}

/// Returns the contents of the messages.
fn messages(response: &Value) -> Vec<&Value> {
    let items = response["output"].as_array().unwrap().iter();
    items.filter(|item| item["type"] == "message").map(|item| &item["content"]).collect()
}

fn chat(content: &str) -> Value {
    json!({"model": "evo-rag", "messages": [{"role": "user", "content": content}]})
}

#[tokio::test]
async fn a_chat_has_the_refusal_in_the_place_of_content() {
    let server = test_server().await;
    let (status, whole) = server.chat(&chat("Who?")).await;
    let choice = &whole["choices"][0];
    let message = &choice["message"];
    assert_eq!((status, &message["refusal"], &message["content"]), (200, &json!(REFUSAL), &Value::Null), "{whole}");
    assert_eq!((&choice["finish_reason"], &message["reasoning_content"]), (&json!("stop"), &json!("Who?\n\nNo.\n")));

    let mut body = chat("Who?");
    body["stream"] = json!(true);
    let told = chunks(&server.stream(&body).await);
    assert_eq!((joined(&told, "refusal")[&0].as_str(), joined(&told, "content")[&0].as_str()), (REFUSAL, ""));
    assert_eq!(told.last().unwrap()["choices"][0]["finish_reason"], "stop");

    // The refusal is sent back with the next question.
    let mut body = chat("Who?");
    let list = body["messages"].as_array_mut().unwrap();
    list.push(message.clone());
    list.push(json!({"role": "user", "content": "Faust, then?"}));
    let (status, whole) = server.chat(&body).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!((status, &message["content"], &message["refusal"]), (200, &json!("Goethe wrote Faust."), &Value::Null));
    // An empty content next to a refusal is accepted; a non-empty one is not.
    body["messages"][1]["content"] = json!("");
    assert_eq!(server.chat(&body).await.0, 200);
    body["messages"][1]["content"] = json!("But yes.");
    assert_eq!(server.chat(&body).await.1["error"]["param"], "messages[1].refusal");
    body["messages"][1]["content"] = Value::Null;
    body["messages"][0]["refusal"] = json!("no");
    assert_eq!(server.chat(&body).await.1["error"]["param"], "messages[0].refusal");
    server.quiet().await;
}

#[tokio::test]
async fn an_episode_says_that_it_refused() {
    let server = test_server().await;
    let whole: Value =
        server.post("/v1/agent", &json!({"question": "Who?", "model": "evo-rag"})).await.json().await.unwrap();
    assert_eq!((&whole["answer"], &whole["refusal"]), (&Value::Null, &json!(REFUSAL)), "{whole}");
    assert_eq!((&whole["finish_reason"], &whole["citations"]), (&json!("refused"), &json!([])));
    check_equal(&server, whole["id"].as_str().unwrap()).await;
    let body = json!({"question": "Who?", "model": "evo-rag", "stream": true});
    let stream = server.post("/v1/agent", &body).await.text().await.unwrap();
    assert!(stream.contains("event: refusal\n"), "{stream}");
    let metrics = server.metrics().await;
    assert!(metrics.contains("outcome=\"refused\""), "{metrics}");
    server.quiet().await;
}

#[tokio::test]
async fn what_was_withdrawn_is_told_and_not_cited() {
    let server = test_server().await;
    let whole: Value =
        server.post("/v1/agent", &json!({"question": "Faust?", "model": "evo-rag"})).await.json().await.unwrap();
    assert_eq!((&whole["answer"], &whole["refusal"]), (&json!("Goethe wrote Faust."), &Value::Null), "{whole}");
    let cited: Vec<&Value> = whole["citations"].as_array().unwrap().iter().map(|cited| &cited["passage"]).collect();
    assert_eq!(cited, ["two"]);
    let trace = whole["trace"].as_array().unwrap();
    let told = trace.iter().find(|event| event["type"] == "withdrawn").unwrap();
    assert_eq!(*told, json!({"type": "withdrawn", "turn": 2, "search": 1, "query": "one"}));
    let id = whole["id"].as_str().unwrap();
    let kept: Value = server.get(&format!("/v1/traces/{id}")).await.json().await.unwrap();
    assert_eq!((&kept["searches"][0]["withdrawn"], &kept["searches"][1]["withdrawn"]), (&json!(2), &Value::Null));
    assert_eq!(kept["actions"][1]["action"], json!({"type": "backtrack"}));
    check_equal(&server, id).await;

    let mut body = chat("Faust?");
    body["rag"] = json!({"trace": true});
    let (_, whole) = server.chat(&body).await;
    let steps = whole["choices"][0]["message"]["rag"]["trace"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["type"] == "withdrawn" && step["search"] == 1), "{steps:?}");
    server.quiet().await;
}

#[tokio::test]
async fn a_refusal_that_a_bound_cuts_is_incomplete_everywhere() {
    let plan = ServerPlan {
        searcher: Some(Arc::new(Named)),
        ..ServerPlan::new(says(&format!("<refuse> {REFUSAL} {REFUSAL}")))
    };
    let mut policy = Policy::builtin("evo-rag").unwrap();
    (policy.budget.context_tokens, policy.budget.turn_tokens) = (16_384, 30);
    let server = ServerPlan { policies: vec![policy], ..plan }.build().await;
    let whole: Value =
        server.post("/v1/responses", &json!({"model": "evo-rag", "input": "Who?"})).await.json().await.unwrap();
    let item = &whole["output"][0];
    assert_eq!((&whole["status"], &item["status"]), (&json!("incomplete"), &json!("incomplete")), "{whole}");
    assert_eq!(item["content"], json!([{"type": "refusal", "refusal": "The passages do not s"}]));
    let whole: Value =
        server.post("/v1/agent", &json!({"question": "Who?", "model": "evo-rag"})).await.json().await.unwrap();
    assert_eq!(
        (&whole["refusal"], &whole["finish_reason"]),
        (&json!("The passages do not s"), &json!("length")),
        "{whole}"
    );
    let (_, whole) = server.chat(&chat("Who?")).await;
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    server.quiet().await;
}

#[tokio::test]
async fn a_mentioned_tag_is_no_refusal() {
    let lines = ["<think>Should I <refuse>? No, I answer.</think>", "<answer>Goethe wrote Faust.</answer>"];
    let lines = Lines::new(lines).terminator("try again.\n");
    let mut plan = ServerPlan { searcher: Some(Arc::new(Named)), ..ServerPlan::new(script(&lines)) };
    let mut policy = Policy::builtin("evo-rag").unwrap();
    policy.budget.context_tokens = 16_384;
    plan.policies.push(policy);
    let server = plan.build().await;
    let (_, whole) = server.chat(&chat("Who?")).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], &message["refusal"]), (&json!("Goethe wrote Faust."), &Value::Null), "{whole}");
    assert_eq!(message["reasoning_content"], "Should I ? No, I answer.", "nothing that was written is lost");
    server.quiet().await;
}

#[tokio::test]
async fn a_response_has_the_refusal_as_its_message() {
    let server = test_server().await;
    let body = json!({"model": "evo-rag", "input": "Who?", "store": true});
    let whole: Value = server.post("/v1/responses", &body).await.json().await.unwrap();
    assert_eq!((&whole["status"], &whole["incomplete_details"]), (&json!("completed"), &Value::Null), "{whole}");
    let said = json!([{"type": "refusal", "refusal": REFUSAL}]);
    assert_eq!(messages(&whole), [&said]);

    let streamed = json!({"model": "evo-rag", "input": "Who?", "stream": true});
    let stream = server.post("/v1/responses", &streamed).await.text().await.unwrap();
    let events: Vec<&str> = stream.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let tail = [
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert!(events.ends_with(&tail), "{events:?}");

    // The refusal is part of the conversation, whether it is sent again or referred to by its ID.
    for again in [
        json!({"model": "evo-rag", "input": "Faust, then?", "previous_response_id": whole["id"]}),
        json!({"model": "evo-rag", "input": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "Faust, then?"},
        ]}),
    ] {
        let next: Value = server.post("/v1/responses", &again).await.json().await.unwrap();
        assert_eq!(messages(&next)[0][0]["text"], "Goethe wrote Faust.", "{next}");
    }
    server.quiet().await;
}
