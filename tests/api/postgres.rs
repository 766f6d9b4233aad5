//! Servers that share a PostgreSQL database.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, KeyEntry, Secret};
use waymark::store::{SqlStore, StateLimits};
use waymark_engine::mock::Lines;

use crate::harness::{ServerPlan, TestServer, answer, eventually_found, says, script};
use crate::postgres_server::Postgres;
use crate::responses::{self, ask, create, fetch};

/// Starts a server with connections of its own.
async fn over(database: &Postgres, plan: ServerPlan) -> TestServer {
    let store = SqlStore::open_postgres(&database.url, StateLimits::default()).await.unwrap();
    ServerPlan { records: Some(Arc::new(store)), ..plan }.build().await
}

#[tokio::test]
#[ignore = "needs the programs of a PostgreSQL server, from the package `postgresql`"]
async fn two_servers_continue_each_others_responses() {
    let database = Postgres::start();
    let lines = || Lines::new(["one"]).rule("one<|im_end|>\n<|im_start|>user\nagain", ["two"]);
    // Both create the tables if they are missing.
    let (first, second) = tokio::join!(
        over(&database, ServerPlan::new(script(&lines()))),
        over(&database, ServerPlan::new(script(&lines())))
    );
    let (_, response) = create(&first, &ask(json!({}))).await;
    assert_eq!(fetch(&second, &response["id"], "").await, (200, response.clone()));
    let again = ask(json!({"input": "again", "previous_response_id": response["id"]}));
    let (_, continued) = create(&second, &again).await;
    assert_eq!(responses::answer(&continued), "two");
    assert_eq!(fetch(&first, &continued["id"], "").await, (200, continued));
}

#[tokio::test]
#[ignore = "needs the programs of a PostgreSQL server, from the package `postgresql`"]
async fn two_servers_add_to_one_conversation_and_lose_nothing() {
    let database = Postgres::start();
    let first = over(&database, ServerPlan::new(says("hi"))).await;
    let second = over(&database, ServerPlan::new(says("hi"))).await;
    let (_, conversation) = answer(first.post("/v1/conversations", &json!({})).await).await;
    let path = format!("/v1/conversations/{}/items", conversation["id"].as_str().unwrap());
    let add = async |server: &TestServer, name: &str| {
        for number in 0..20 {
            let pair = [1, 2].map(|part| json!({"role": "user", "content": format!("{name}{number}.{part}")}));
            assert_eq!(server.post(&path, &json!({"items": pair})).await.status(), 200);
        }
    };
    tokio::join!(add(&first, "a"), add(&second, "b"));
    let (_, items) = answer(second.get(&format!("{path}?limit=100&order=asc")).await).await;
    let texts: Vec<&str> =
        items["data"].as_array().unwrap().iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 80);
    for pair in texts.chunks(2) {
        // The items of one request stay together.
        assert_eq!(pair[0].strip_suffix(".1").unwrap(), pair[1].strip_suffix(".2").unwrap(), "{texts:?}");
    }
}

#[tokio::test]
#[ignore = "needs the programs of a PostgreSQL server, from the package `postgresql`"]
async fn a_background_response_is_seen_while_another_server_generates_it() {
    let database = Postgres::start();
    let slow = says(&"word ".repeat(250)).with_time(Duration::from_millis(4), Duration::ZERO);
    let first = over(&database, ServerPlan::new(slow)).await;
    let second = over(&database, ServerPlan::new(says("hi"))).await;
    let (_, queued) = create(&first, &ask(json!({"background": true}))).await;
    let (status, seen) = fetch(&second, &queued["id"], "").await;
    assert_eq!((status, &seen["status"]), (200, &json!("queued")), "{seen}");
    let cancel = format!("/v1/responses/{}/cancel", queued["id"].as_str().unwrap());
    assert_eq!(second.post(&cancel, &json!({})).await.status(), 400);
    let seen = eventually_found("the other server sees it end", async || {
        let (_, seen) = fetch(&second, &queued["id"], "").await;
        (seen["status"] == "completed").then_some(seen)
    })
    .await;
    assert_eq!(fetch(&first, &queued["id"], "").await.1, seen);
}

#[tokio::test]
#[ignore = "needs the programs of a PostgreSQL server, from the package `postgresql`"]
async fn a_trace_that_another_server_deletes_is_gone() {
    let database = Postgres::start();
    let first = over(&database, ServerPlan::new(says("hi"))).await;
    let second = over(&database, ServerPlan::new(says("hi"))).await;
    let (_, response) = create(&first, &ask(json!({}))).await;
    first.quiet().await;
    let path = format!("/v1/traces/{}", response["id"].as_str().unwrap());
    let replay = async || first.post(&format!("{path}/replay"), &json!({"mode": "forced"})).await.status();
    let listed = async || answer(first.get("/v1/traces").await).await.1["data"].as_array().unwrap().len();
    assert_eq!(first.get(&path).await.status(), 200);
    assert_eq!(replay().await, 200);
    assert_eq!(listed().await, 1);
    assert_eq!(second.client.delete(second.url(&path)).send().await.unwrap().status(), 200);
    assert_eq!(listed().await, 0);
    assert_eq!(first.get(&path).await.status(), 404);
    assert_eq!(replay().await, 404);
}

#[tokio::test]
#[ignore = "needs the programs of a PostgreSQL server, from the package `postgresql`"]
async fn a_revoked_key_is_refused_by_all_servers() {
    let database = Postgres::start();
    let admin = Secret::generate();
    let plan = || {
        let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(&admin)]).unwrap();
        ServerPlan { keys, ..ServerPlan::new(says("hi")) }
    };
    let first = over(&database, plan()).await;
    let second = over(&database, plan()).await;
    let request = first.client.post(first.url("/v1/keys")).bearer_auth(admin.reveal()).json(&json!({"name": "alice"}));
    let created: Value = request.send().await.unwrap().json().await.unwrap();
    let alice = created["key"].as_str().unwrap();
    eventually_status(&second, alice, 200).await;
    let revoked = first.client.delete(first.url("/v1/keys/alice")).bearer_auth(admin.reveal()).send().await.unwrap();
    assert_eq!(revoked.status(), 200);
    eventually_status(&second, alice, 401).await;
}

/// Waits until a server answers a key with this status. Servers look for changed keys every five seconds.
async fn eventually_status(server: &TestServer, key: &str, status: u16) {
    eventually_found(&format!("the server answers with {status}"), async || {
        let models = server.client.get(server.url("/v1/models")).bearer_auth(key).send().await.unwrap();
        (models.status() == status).then_some(())
    })
    .await;
}
