//! Keys in the state: created, listed and revoked over HTTP, and known to other servers.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, KeyEntry, Secret};
use waymark::store::{SqlStore, StateLimits, Store};

use crate::harness::{ServerPlan, TestServer, answer, says};

async fn over(store: &Arc<dyn Store>, admin: &Secret) -> TestServer {
    let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(admin)]).unwrap();
    ServerPlan { keys, records: Some(Arc::clone(store)), ..ServerPlan::new(says("hi")) }.build().await
}

async fn open(dir: &Path) -> Arc<dyn Store> {
    Arc::new(SqlStore::open_directory(dir, StateLimits::default()).await.unwrap())
}

async fn send(server: &TestServer, key: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let request = server.client.request(method.parse().unwrap(), server.url(path)).bearer_auth(key);
    let request = if body.is_null() { request } else { request.json(&body) };
    answer(request.send().await.unwrap()).await
}

#[tokio::test]
async fn a_key_is_valid_from_its_creation_to_its_revocation() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let admin = Secret::generate();
    let server = over(&store, &admin).await;
    let body = json!({"name": "alice", "scopes": ["infer"], "concurrent": 4, "priority": "low"});
    let (status, created) = send(&server, admin.reveal(), "POST", "/v1/keys", body.clone()).await;
    assert_eq!((status, &created["id"], &created["source"]), (200, &json!("alice"), &json!("state")), "{created}");
    let alice = created["key"].as_str().unwrap();
    assert_eq!(send(&server, alice, "GET", "/v1/models", Value::Null).await.0, 200);
    assert_eq!(send(&server, alice, "GET", "/v1/keys", Value::Null).await.0, 403);
    let (status, refused) = send(&server, admin.reveal(), "POST", "/v1/keys", body).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("name")));

    let (_, list) = send(&server, admin.reveal(), "GET", "/v1/keys", Value::Null).await;
    let names: Vec<_> = list["data"].as_array().unwrap().iter().map(|key| (&key["id"], &key["source"])).collect();
    assert_eq!(names, [(&json!("environment"), &json!("flag")), (&json!("alice"), &json!("state"))]);
    assert!(!list.to_string().contains(&alice[3..]), "{list}");

    // Another server over the same state, as after a restart.
    let second = over(&store, &admin).await;
    assert_eq!(send(&second, alice, "GET", "/v1/models", Value::Null).await.0, 200);
    let gone = json!({"id": "alice", "object": "api_key.deleted", "deleted": true});
    assert_eq!(send(&second, admin.reveal(), "DELETE", "/v1/keys/alice", Value::Null).await, (200, gone));
    assert_eq!(send(&second, alice, "GET", "/v1/models", Value::Null).await.0, 401);
    assert_eq!(send(&second, admin.reveal(), "DELETE", "/v1/keys/alice", Value::Null).await.0, 404);
    assert_eq!(send(&second, admin.reveal(), "DELETE", "/v1/keys/environment", Value::Null).await.0, 404);
    let third = over(&store, &admin).await;
    assert_eq!(send(&third, alice, "GET", "/v1/models", Value::Null).await.0, 401);
}

#[tokio::test]
async fn what_a_key_creates_is_its_own_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let admin = Secret::generate();
    let first = over(&store, &admin).await;
    let new = async |server: &TestServer, name: &str| {
        let (_, created) = send(server, admin.reveal(), "POST", "/v1/keys", json!({"name": name})).await;
        created["key"].as_str().unwrap().to_owned()
    };
    let alice = new(&first, "alice").await;
    let bob = new(&first, "bob").await;
    let (_, response) =
        send(&first, &alice, "POST", "/v1/responses", json!({"model": "plain", "input": "hello"})).await;
    drop(first);
    let second = over(&store, &admin).await;
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(send(&second, &alice, "GET", &path, Value::Null).await, (200, response));
    assert_eq!(send(&second, &bob, "GET", &path, Value::Null).await.0, 404);
    // A new key of the same name is another key.
    assert_eq!(send(&second, admin.reveal(), "DELETE", "/v1/keys/alice", Value::Null).await.0, 200);
    let again = new(&second, "alice").await;
    assert_eq!(send(&second, &again, "GET", &path, Value::Null).await.0, 404);
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused() {
    let open_server = TestServer::new(says("hi")).await;
    let admin = Secret::generate();
    let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(&admin)]).unwrap();
    let forgetful = ServerPlan { keys, ..ServerPlan::new(says("hi")) }.build().await;
    for server in [&open_server, &forgetful] {
        let (status, refused) = send(server, admin.reveal(), "POST", "/v1/keys", json!({"name": "a"})).await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("not_configured")), "{refused}");
    }
    let dir = tempfile::tempdir().unwrap();
    let server = over(&open(dir.path()).await, &admin).await;
    for (body, param) in [
        (json!({"name": "a b"}), "name"),
        (json!({"name": "a", "scopes": []}), "scopes"),
        (json!({"name": "a", "concurrent": 0}), "concurrent"),
        (json!({"name": "a", "secret": "x"}), "secret"),
    ] {
        let (status, refused) = send(&server, admin.reveal(), "POST", "/v1/keys", body).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
}

#[tokio::test]
async fn a_key_is_created_for_some_of_the_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let admin = Secret::generate();
    let server = over(&open(dir.path()).await, &admin).await;
    for (index, expected) in [("default", 200), ("law", 403)] {
        let body = json!({"name": index, "indexes": [index]});
        let (status, made) = send(&server, admin.reveal(), "POST", "/v1/keys", body).await;
        assert_eq!((status, &made["indexes"]), (200, &json!([index])), "{made}");
        let key = made["key"].as_str().unwrap();
        let (status, found) = send(&server, key, "POST", "/v1/search", json!({"query": "Faust"})).await;
        assert_eq!(status, expected, "{index}: {found}");
    }
    let (_, listed) = send(&server, admin.reveal(), "GET", "/v1/keys", Value::Null).await;
    let of = |name: &str| listed["data"].as_array().unwrap().iter().find(|key| key["id"] == name).unwrap().clone();
    assert_eq!((&of("law")["indexes"], &of("environment")["indexes"]), (&json!(["law"]), &Value::Null));
    for body in [
        json!({"name": "a", "indexes": []}),
        json!({"name": "a", "indexes": ["a b"]}),
        json!({"name": "a", "indexes": ["law"], "scopes": ["admin"]}),
    ] {
        let (status, wrong) = send(&server, admin.reveal(), "POST", "/v1/keys", body.clone()).await;
        assert_eq!((status, &wrong["error"]["param"]), (400, &json!("indexes")), "{body}: {wrong}");
    }
}
