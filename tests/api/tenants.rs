//! Keys cannot push each other out of the stores, nor take what belongs to another key.

use std::fs;

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, KeyEntry, Scope, Secret};

use crate::harness::{ServerPlan, key_entry, says, send};

fn entry(name: &str, secret: &Secret) -> KeyEntry {
    key_entry(name, secret, &[Scope::Infer])
}

fn ask() -> Value {
    json!({"model": "plain", "input": "x", "max_output_tokens": 1})
}

#[tokio::test]
async fn a_flood_of_one_key_evicts_nothing_of_another() {
    let [greedy, modest] = [Secret::generate(), Secret::generate()];
    let keys = ApiKeys::open(None, vec![entry("greedy", &greedy), entry("modest", &modest)]).unwrap();
    let mut plan = ServerPlan { keys, ..ServerPlan::new(says("hi")) };
    plan.http.responses.kept = 10;
    plan.http.traces.count = 10;
    let server = plan.build().await;
    let (_, mine) = send(&server, &modest, "POST", "/v1/responses", &ask()).await;
    let mine = mine["id"].as_str().unwrap();
    for _ in 0..30 {
        assert_eq!(send(&server, &greedy, "POST", "/v1/responses", &ask()).await.0, 200);
    }
    for path in [format!("/v1/responses/{mine}"), format!("/v1/traces/{mine}")] {
        assert_eq!(send(&server, &modest, "GET", &path, &Value::Null).await.0, 200, "{path}");
    }
    let mut more = ask();
    more["previous_response_id"] = json!(mine);
    assert_eq!(send(&server, &modest, "POST", "/v1/responses", &more).await.0, 200);
    let (_, listed) = send(&server, &greedy, "GET", "/v1/traces?limit=100", &Value::Null).await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 8, "what the other leaves");
}

#[tokio::test]
async fn resumable_streams_of_one_key_leave_room_for_others() {
    let [greedy, modest] = [Secret::generate(), Secret::generate()];
    let keys = ApiKeys::open(None, vec![entry("greedy", &greedy), entry("modest", &modest)]).unwrap();
    let mut plan = ServerPlan { keys, ..ServerPlan::new(says("hi")) };
    plan.http.resume.count = 8;
    let server = plan.build().await;
    let stream = json!({"question": "x", "model": "plain", "stream": true, "resumable": true});
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(send(&server, &greedy, "POST", "/v1/agent", &stream).await.0);
    }
    // One key gets half of the eight places.
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429, 429, 429]);
    assert_eq!(send(&server, &modest, "POST", "/v1/agent", &stream).await.0, 200);
}

#[tokio::test]
async fn a_new_key_of_an_old_name_owns_nothing_of_the_old_one() {
    let [old, new] = [Secret::generate(), Secret::generate()];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.toml");
    fs::write(&file, entry("alice", &old).to_string()).unwrap();
    let keys = ApiKeys::open(Some(&file), Vec::new()).unwrap();
    let server = ServerPlan { keys: keys.clone(), ..ServerPlan::new(says("hi")) }.build().await;
    let (_, response) = send(&server, &old, "POST", "/v1/responses", &ask()).await;
    let id = response["id"].as_str().unwrap();
    fs::write(&file, entry("alice", &new).to_string()).unwrap();
    keys.reload().unwrap();
    for path in [format!("/v1/responses/{id}"), format!("/v1/traces/{id}")] {
        assert_eq!(send(&server, &new, "GET", &path, &Value::Null).await.0, 404, "{path}");
    }
    // The old key is back under another name, with everything it made.
    fs::write(&file, entry("bob", &old).to_string()).unwrap();
    keys.reload().unwrap();
    assert_eq!(send(&server, &old, "GET", &format!("/v1/responses/{id}"), &Value::Null).await.0, 200);
}
