//! Conversations: created, continued by responses, listed, and owned by their keys.

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, Scope, Secret};
use waymark_engine::mock::Lines;

use crate::harness::{ServerPlan, TestServer, answer, key_entry, says, script};
use crate::responses::{self, ask};

async fn create(server: &TestServer, body: Value) -> Value {
    let (status, conversation) = answer(server.post("/v1/conversations", &body).await).await;
    assert_eq!((status, &conversation["object"]), (200, &json!("conversation")), "{conversation}");
    conversation
}

fn path(conversation: &Value) -> String {
    format!("/v1/conversations/{}", conversation["id"].as_str().unwrap())
}

async fn items(server: &TestServer, conversation: &Value, query: &str) -> Value {
    let (status, items) = answer(server.get(&format!("{}/items{query}", path(conversation))).await).await;
    assert_eq!(status, 200, "{items}");
    items
}

fn texts(items: &Value) -> Vec<&str> {
    items["data"].as_array().unwrap().iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_response_continues_a_conversation_and_adds_to_it() {
    let lines = Lines::new(["one"]).rule("one<|im_end|>\n<|im_start|>user\nagain", ["two"]);
    let server = TestServer::new(script(&lines)).await;
    let conversation = create(&server, json!({"metadata": {"topic": "numbers"}})).await;
    let of = |extra: Value| crate::harness::with_fields(ask(json!({"conversation": conversation["id"]})), extra);
    let (status, first) = responses::create(&server, &of(json!({}))).await;
    assert_eq!((status, &first["conversation"]["id"]), (200, &conversation["id"]), "{first}");
    let again = of(json!({"input": "again", "conversation": {"id": conversation["id"]}}));
    let (_, second) = responses::create(&server, &again).await;
    assert_eq!(responses::answer(&second), "two");

    let all = items(&server, &conversation, "?order=asc").await;
    assert_eq!(texts(&all), ["hello", "one", "again", "two"]);
    assert_eq!((&all["has_more"], &all["last_id"]), (&json!(false), &all["data"][3]["id"]));
    let youngest = items(&server, &conversation, "?limit=1").await;
    assert_eq!((texts(&youngest), &youngest["has_more"]), (vec!["two"], &json!(true)));
    let rest = items(&server, &conversation, &format!("?after={}", youngest["last_id"].as_str().unwrap())).await;
    assert_eq!(texts(&rest), ["again", "one", "hello"]);

    // The input of the response itself, without what it continues.
    let input = format!("/v1/responses/{}/input_items", second["id"].as_str().unwrap());
    assert_eq!(texts(&server.get(&input).await.json().await.unwrap()), ["again"]);
}

#[tokio::test]
async fn a_page_of_large_items_ends_early_and_says_so() {
    let server = TestServer::new(says("hi")).await;
    let conversation = create(&server, json!({})).await;
    let large = "x".repeat(1 << 20);
    for _ in 0..25 {
        let more = json!({"items": [{"role": "user", "content": large}]});
        assert_eq!(server.post(&format!("{}/items", path(&conversation)), &more).await.status(), 200);
    }
    let mut seen = 0;
    let mut query = "?limit=100".to_owned();
    loop {
        let page = items(&server, &conversation, &query).await;
        let count = texts(&page).len();
        assert!((1..=8).contains(&count), "{count}");
        seen += count;
        if page["has_more"] == false {
            break;
        }
        query = format!("?limit=100&after={}", page["last_id"].as_str().unwrap());
    }
    assert_eq!(seen, 25);
    // The texts together are too long for a response.
    let (status, refused) = responses::create(&server, &ask(json!({"conversation": conversation["id"]}))).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("conversation")), "{refused}");
}

#[tokio::test]
async fn a_conversation_grows_on_a_server_that_keeps_no_responses() {
    let mut plan = ServerPlan::new(says("hi"));
    plan.http.responses.kept = 0;
    let server = plan.build().await;
    let conversation = create(&server, json!({})).await;
    let (status, response) = responses::create(&server, &ask(json!({"conversation": conversation["id"]}))).await;
    assert_eq!(status, 200, "{response}");
    assert_eq!(response["store"], false, "{response}");
    assert_eq!(texts(&items(&server, &conversation, "?order=asc").await), ["hello", "hi"]);
    let stored = ask(json!({"conversation": conversation["id"], "store": true}));
    assert_eq!(responses::create(&server, &stored).await.0, 200);
    assert_eq!(responses::fetch(&server, &response["id"], "").await.0, 404);
}

#[tokio::test]
async fn conversations_and_items_are_changed_and_deleted() {
    let server = TestServer::new(says("hi")).await;
    let first = json!({"role": "user", "content": "first"});
    let conversation = create(&server, json!({"items": [first]})).await;
    let added = json!({"items": [{"role": "assistant", "content": "second"}, {"role": "user", "content": "third"}]});
    let (status, added) = answer(server.post(&format!("{}/items", path(&conversation)), &added).await).await;
    assert_eq!((status, texts(&added)), (200, vec!["second", "third"]));

    let second = format!("{}/items/{}", path(&conversation), added["data"][0]["id"].as_str().unwrap());
    let (_, item) = answer(server.get(&second).await).await;
    let part = json!({"type": "output_text", "text": "second", "annotations": [], "logprobs": []});
    assert_eq!(item["content"], json!([part]));
    let deleted = server.client.delete(server.url(&second)).send().await.unwrap();
    assert_eq!(answer(deleted).await, (200, conversation.clone()));
    assert_eq!(answer(server.get(&second).await).await.1["error"]["code"], "conversation_not_found");
    assert_eq!(texts(&items(&server, &conversation, "?order=asc").await), ["first", "third"]);

    let renamed = answer(server.post(&path(&conversation), &json!({"metadata": {"a": "b"}})).await).await;
    assert_eq!((renamed.0, &renamed.1["metadata"]), (200, &json!({"a": "b"})));
    assert_eq!(answer(server.get(&path(&conversation)).await).await, renamed);
    let (status, refused) = answer(server.post(&path(&conversation), &json!({})).await).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("metadata")), "{refused}");
    let cleared = answer(server.post(&path(&conversation), &json!({"metadata": null})).await).await;
    assert_eq!((cleared.0, &cleared.1["metadata"]), (200, &json!({})), "{}", cleared.1);

    let gone = json!({"id": conversation["id"], "object": "conversation.deleted", "deleted": true});
    let deleted = server.client.delete(server.url(&path(&conversation))).send().await.unwrap();
    assert_eq!(answer(deleted).await, (200, gone));
    for path in [path(&conversation), format!("{}/items", path(&conversation))] {
        let (status, absent) = answer(server.get(&path).await).await;
        let message = absent["error"]["message"].as_str().unwrap();
        assert!(status == 404 && message.contains("is not kept: it was deleted"), "{path}: {message}");
    }
    let (status, refused) = responses::create(&server, &ask(json!({"conversation": conversation["id"]}))).await;
    assert_eq!((status, &refused["error"]["param"]), (404, &json!("conversation")));
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_by_name() {
    let server = TestServer::new(says("hi")).await;
    let conversation = create(&server, json!({})).await;
    let id = &conversation["id"];
    for (body, param) in [
        (json!({"conversation": id, "previous_response_id": "resp_1"}), "conversation"),
        (json!({"conversation": id, "store": false}), "conversation"),
        (json!({"conversation": 3}), "conversation"),
    ] {
        let (status, refused) = responses::create(&server, &ask(body)).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    for (body, param) in [
        (json!({"items": [{"role": "user", "content": "x"}, {"type": "web_search_call"}]}), "items[1]"),
        (json!({"metadata": {"a": "x".repeat(513)}}), "metadata"),
        (json!({"topic": "x"}), "topic"),
    ] {
        let (status, refused) = answer(server.post("/v1/conversations", &body).await).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    let all = format!("{}/items", path(&conversation));
    let more = json!({"items": [{"role": "user", "content": "x"}]});
    let (_, added) = answer(server.post(&all, &more).await).await;
    let first = format!("{all}/{}", added["data"][0]["id"].as_str().unwrap());
    for (query, code, param) in [
        ("include=reasoning.encrypted_content", "unsupported_parameter", "include"),
        ("include[]=reasoning.encrypted_content", "unsupported_parameter", "include"),
        ("include%5B0%5D=reasoning.encrypted_content", "unsupported_parameter", "include"),
        ("included=x", "unknown_parameter", "included"),
    ] {
        let response = server.post(&format!("{all}?{query}"), &more).await;
        let listed = answer(server.get(&format!("{all}?{query}")).await).await;
        let found = answer(server.get(&format!("{first}?{query}")).await).await;
        for (status, refused) in [answer(response).await, listed, found] {
            let error = &refused["error"];
            assert_eq!((status, &error["code"], &error["param"]), (400, &json!(code), &json!(param)), "{query}");
        }
    }
    assert_eq!(items(&server, &conversation, "").await["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_conversation_belongs_to_the_key_that_created_it() {
    let secrets = [Secret::generate(), Secret::generate()];
    let entries =
        secrets.iter().enumerate().map(|(at, secret)| key_entry(&format!("key{at}"), secret, &[Scope::Infer]));
    let keys = ApiKeys::open(None, entries.collect()).unwrap();
    let server = ServerPlan { keys, ..ServerPlan::new(says("hi")) }.build().await;
    let send = async |secret: &Secret, method: &str, path: &str, body: Value| {
        let request = server.client.request(method.parse().unwrap(), server.url(path)).bearer_auth(secret.reveal());
        let request = if body.is_null() { request } else { request.json(&body) };
        answer(request.send().await.unwrap()).await
    };
    let body = json!({"items": [{"role": "user", "content": "mine"}]});
    let (_, conversation) = send(&secrets[0], "POST", "/v1/conversations", body).await;
    let own = path(&conversation);
    let items = format!("{own}/items");
    let (_, listed) = send(&secrets[0], "GET", &items, Value::Null).await;
    let item = format!("{items}/{}", listed["data"][0]["id"].as_str().unwrap());
    let more = json!({"items": [{"role": "user", "content": "theirs"}]});
    for (method, path, body) in [
        ("GET", &own, Value::Null),
        ("POST", &own, json!({"metadata": {}})),
        ("DELETE", &own, Value::Null),
        ("GET", &items, Value::Null),
        ("POST", &items, more),
        ("GET", &item, Value::Null),
        ("DELETE", &item, Value::Null),
    ] {
        let (status, refused) = send(&secrets[1], method, path, body).await;
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("conversation_not_found")), "{method} {path}");
    }
    let question = ask(json!({"conversation": conversation["id"]}));
    assert_eq!(send(&secrets[1], "POST", "/v1/responses", question).await.0, 404);
    assert_eq!(send(&secrets[0], "GET", &items, Value::Null).await.1["data"].as_array().unwrap().len(), 1);
}
