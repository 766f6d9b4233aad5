//! What one key stored is not there for another.

use serde_json::{Value, json};
use waymark::api::auth::{Entry, KeyId, Keys, Limits, Scope, Secret};

use super::ask;
use crate::house::{House, Plan, says};

async fn send(house: &House, secret: &Secret, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = house.client.request(method.parse().unwrap(), house.url(path)).bearer_auth(secret.reveal());
    let response = if body.is_null() { request } else { request.json(body) }.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn responses_belong_to_the_key_that_asked_for_them() {
    let secrets = [Secret::generate(), Secret::generate()];
    let entries = secrets.iter().enumerate().map(|(at, secret)| Entry {
        id: KeyId::new(&format!("key{at}")),
        digest: secret.digest(),
        scopes: vec![Scope::Infer],
        limits: Limits::default(),
        private_cache: false,
    });
    let keys = Keys::open(None, entries.collect()).unwrap();
    let house = Plan { keys, ..Plan::new(says("hi")) }.build().await;
    let [owner, other] = &secrets;
    for background in [false, true] {
        let body = ask(json!({"background": background}));
        let (status, response) = send(&house, owner, "POST", "/v1/responses", &body).await;
        assert_eq!(status, 200, "{response}");
        let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
        let cancel = format!("{path}/cancel");
        let stream = format!("{path}?stream=true");
        for (method, path) in [("GET", &path), ("GET", &stream), ("DELETE", &path), ("POST", &cancel)] {
            let (status, body) = send(&house, other, method, path, &Value::Null).await;
            assert_eq!((status, &body["error"]["code"]), (404, &json!("response_not_found")), "{method} {path}");
        }
        let again = ask(json!({"previous_response_id": response["id"]}));
        assert_eq!(send(&house, other, "POST", "/v1/responses", &again).await.0, 404);
        assert_eq!(send(&house, owner, "GET", &path, &Value::Null).await.0, 200);
        assert_eq!(send(&house, owner, "DELETE", &path, &Value::Null).await.0, 200);
    }
}
