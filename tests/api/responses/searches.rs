//! Search options of a request.

use std::sync::Arc;

use serde_json::{Value, json};
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_index::{Evidence, Mode};

use super::{Plays, ask, create, fetch, two_searches};
use crate::harness::{ServerPlan, script, with_fields};

fn items<'a>(response: &'a Value, kind: &str) -> Vec<&'a Value> {
    response["output"].as_array().unwrap().iter().filter(|item| item["type"] == kind).collect()
}

#[tokio::test]
async fn the_tool_says_how_many_passages_are_wanted() {
    let plays = Plays::default();
    let wanted = plays.0.clone();
    let server =
        ServerPlan { searcher: Some(Arc::new(plays)), ..ServerPlan::new(script(&two_searches())) }.build().await;
    let tool = json!({"type": "file_search", "vector_store_ids": ["default"], "max_num_results": 7});
    let (status, response) = create(&server, &ask(json!({"model": "routerag", "tools": [tool]}))).await;
    assert_eq!((status, &response["tools"]), (200, &json!([tool])), "{response}");
    assert_eq!(*wanted.lock().unwrap(), [7, 7]);
}

#[tokio::test]
async fn searches_are_bounded_and_can_be_forbidden() {
    let server = ServerPlan { searcher: Some(Arc::new(Plays::default())), ..ServerPlan::new(script(&two_searches())) }
        .build()
        .await;
    for (bound, searches) in [
        (json!({}), 2),
        (json!({"max_tool_calls": 5}), 2),
        (json!({"max_tool_calls": 1}), 1),
        (json!({"max_tool_calls": 0}), 0),
        (json!({"tool_choice": "none"}), 0),
        (json!({"rag": {"budget": {"turns": 1}}, "max_tool_calls": 3}), 1),
        (json!({"rag": {"budget": {"searches": 1}}, "max_tool_calls": 3}), 1),
        (json!({"rag": {"budget": {"searches": 0}}}), 0),
        (json!({"rag": {"budget": {"environment_tokens": 10}}}), 1),
        (json!({"rag": {"budget": {"environment_tokens": 0}}}), 0),
    ] {
        let body = with_fields(ask(json!({"model": "routerag"})), bound.clone());
        let (status, response) = create(&server, &body).await;
        assert_eq!(status, 200, "{response}");
        assert_eq!(items(&response, "file_search_call").len(), searches, "{bound}");
        assert_eq!(response["usage"]["searches"], searches, "{bound}");
    }
}

#[tokio::test]
async fn what_was_found_is_shown_where_it_is_asked_for() {
    let server = ServerPlan { searcher: Some(Arc::new(Plays::default())), ..ServerPlan::new(script(&two_searches())) }
        .build()
        .await;
    let (_, response) = create(&server, &ask(json!({"model": "routerag"}))).await;
    assert!(items(&response, "file_search_call").iter().all(|call| call["results"].is_null()));
    let (_, full) = fetch(&server, &response["id"], "?include=file_search_call.results").await;
    let calls = items(&full, "file_search_call");
    assert_eq!(calls[0]["queries"], json!(["Faust"]));
    let result = &calls[1]["results"][1];
    assert_eq!((&result["file_id"], &result["score"]), (&json!("p3"), &json!(0.25)));
    let attributes = json!({"mode": "passage", "rank": 2, "score": 0.25, "turn": 2, "snapshot": 3, "cached": false,
                            "dense_rank": 2, "dense_score": 0.25});
    assert_eq!(result["attributes"], attributes);
}

/// Searcher that fails.
#[derive(Debug)]
struct Broken;

impl Search for Broken {
    fn search(&self, _: SearchQuery) -> futures::future::BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async { Err(SearchError::Failed("no".into())) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage]
    }
}

#[tokio::test]
async fn a_search_that_fails_is_an_item_that_failed() {
    let server =
        ServerPlan { searcher: Some(Arc::new(Broken)), ..ServerPlan::new(script(&two_searches())) }.build().await;
    let body = ask(json!({"model": "routerag", "stream": true, "include": ["file_search_call.results"]}));
    let stream = server.post("/v1/responses", &body).await.text().await.unwrap();
    assert!(!stream.contains("file_search_call.completed"));
    let last = super::events(&stream).pop().unwrap();
    assert_eq!(last["response"]["status"], "completed");
    let calls = items(&last["response"], "file_search_call");
    assert!(!calls.is_empty() && calls.iter().all(|call| call["status"] == "failed" && call["results"].is_null()));
    assert_eq!(items(&last["response"], "message")[0]["content"][0]["annotations"], json!([]));
}
