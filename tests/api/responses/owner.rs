//! Responses stored by one key are invisible to others.

use std::sync::Arc;

use serde_json::{Value, json};
use waymark::keys::{ApiKeys, KeyEntry, KeyLimits, Scope, Secret};

use super::{Never, ask, two_searches};
use crate::harness::{ServerPlan, key_entry, says, script, send};

fn known(secrets: &[Secret], limits: KeyLimits) -> ApiKeys {
    let entry =
        |(at, secret): (usize, &Secret)| KeyEntry { limits, ..key_entry(&format!("key{at}"), secret, &[Scope::Infer]) };
    ApiKeys::open(None, secrets.iter().enumerate().map(entry).collect()).unwrap()
}

#[tokio::test]
async fn responses_belong_to_the_key_that_asked_for_them() {
    let secrets = [Secret::generate(), Secret::generate()];
    let keys = known(&secrets, KeyLimits::default());
    let server = ServerPlan { keys, ..ServerPlan::new(says("hi")) }.build().await;
    let [owner, other] = &secrets;
    for background in [false, true] {
        let body = ask(json!({"background": background}));
        let (status, response) = send(&server, owner, "POST", "/v1/responses", &body).await;
        assert_eq!(status, 200, "{response}");
        let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
        let cancel = format!("{path}/cancel");
        let stream = format!("{path}?stream=true");
        for (method, path) in [("GET", &path), ("GET", &stream), ("DELETE", &path), ("POST", &cancel)] {
            let (status, body) = send(&server, other, method, path, &Value::Null).await;
            assert_eq!((status, &body["error"]["code"]), (404, &json!("response_not_found")), "{method} {path}");
        }
        let again = ask(json!({"previous_response_id": response["id"]}));
        assert_eq!(send(&server, other, "POST", "/v1/responses", &again).await.0, 404);
        assert_eq!(send(&server, owner, "GET", &path, &Value::Null).await.0, 200);
        assert_eq!(send(&server, owner, "DELETE", &path, &Value::Null).await.0, 200);
    }
}

#[tokio::test]
async fn what_is_made_in_the_background_counts_for_its_key() {
    let secrets = [Secret::generate(), Secret::generate()];
    let keys = known(&secrets, KeyLimits { concurrent: Some(2), ..KeyLimits::default() });
    let plan = ServerPlan { keys, searcher: Some(Arc::new(Never)), ..ServerPlan::new(script(&two_searches())) };
    let server = plan.build().await;
    let [owner, other] = &secrets;
    let body = ask(json!({"model": "routerag", "background": true}));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (status, response) = send(&server, owner, "POST", "/v1/responses", &body).await;
        assert_eq!(status, 200, "{response}");
        ids.push(response["id"].as_str().unwrap().to_owned());
    }
    let (status, refused) = send(&server, owner, "POST", "/v1/responses", &body).await;
    assert_eq!((status, &refused["error"]["code"]), (429, &json!("concurrency_limit_exceeded")));
    assert!(refused["error"]["message"].as_str().unwrap().contains("background"), "{refused}");
    // The key can still fetch its responses, other keys are not affected, and an ended response frees its slot.
    assert_eq!(send(&server, owner, "GET", &format!("/v1/responses/{}", ids[0]), &Value::Null).await.0, 200);
    assert_eq!(send(&server, other, "POST", "/v1/responses", &body).await.0, 200);
    let cancel = format!("/v1/responses/{}/cancel", ids[0]);
    assert_eq!(send(&server, owner, "POST", &cancel, &Value::Null).await.0, 200);
    assert_eq!(send(&server, owner, "POST", "/v1/responses", &body).await.0, 200);
}
