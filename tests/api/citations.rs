//! Which passages support an answer, as `/v1/agent` tells it; responses have them as annotations.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::house::{House, Plan, says, script};
use crate::responses::{Plays, two_searches};

async fn ask(house: &House, model: &str, stream: bool) -> reqwest::Response {
    let response = house.post("/v1/agent", &json!({"question": "Who?", "model": model, "stream": stream})).await;
    assert_eq!(response.status(), 200);
    response
}

/// The last event of a stream.
fn finished(stream: &str) -> Value {
    let last = stream.trim_end().rsplit("\n\n").next().unwrap();
    let (head, data) = last.split_once("\ndata: ").unwrap();
    assert!(head.ends_with("event: finished"), "{head}");
    serde_json::from_str(data).unwrap()
}

#[tokio::test]
async fn an_episode_ends_with_them() {
    let house = Plan { searcher: Some(Arc::new(Plays::default())), ..Plan::new(script(&two_searches())) }.build().await;
    let expected = json!([
        {"start": 0, "end": 19, "passage": "p1", "title": "Faust", "stated": false},
        {"start": 20, "end": 40, "passage": "p2", "title": "Wilhelm Tell", "stated": true},
    ]);
    let whole: Value = ask(&house, "routerag", false).await.json().await.unwrap();
    assert_eq!(
        (&whole["answer"], &whole["citations"]),
        (&json!("Goethe wrote Faust. Schiller wrote Tell."), &expected)
    );
    assert_eq!(whole["trace"].as_array().unwrap().last().unwrap()["citations"], expected);
    let told = finished(&ask(&house, "routerag", true).await.text().await.unwrap());
    assert_eq!(told["citations"], expected);
}

#[tokio::test]
async fn without_a_search_there_are_none() {
    let house = House::new(says("Goethe wrote Faust.")).await;
    let whole: Value = ask(&house, "plain", false).await.json().await.unwrap();
    assert_eq!(whole["citations"], json!([]));
    let told = finished(&ask(&house, "plain", true).await.text().await.unwrap());
    assert_eq!((&told["answer"], told.get("citations")), (&json!("Goethe wrote Faust."), None));
}
