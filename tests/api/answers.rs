//! Size limit of answers on every route that returns passages. Each answer reports what was left out.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_index::{AnswerRoom, Evidence, Hit, HitPath, Mode, Passage};

use crate::harness::{ServerPlan, TestServer, says, script};
use crate::traces::{loops, trace};

/// Searcher that finds as many passages of 1,000 bytes as it is asked for, within the query's bound, and fails on
/// demand.
#[derive(Debug)]
struct Wordy;

impl Search for Wordy {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        Box::pin(async move {
            if query.wanted.text == "broken" {
                return Err(SearchError::Timeout);
            }
            let hit = |rank: usize| {
                let passage = Passage { id: format!("p{rank}"), title: "T".into(), text: "x".repeat(1000) };
                Hit { rank, score: 0.5, passage, metadata: None, path: HitPath::default() }
            };
            let mut hits = (1..=query.wanted.k).map(hit).collect();
            let left_out = AnswerRoom::new(query.wanted.bytes).cut(&mut hits, &mut Vec::new());
            Ok(Evidence { left_out, ..Evidence::of(1, query.wanted.mode, hits) })
        })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Triples]
    }
}

async fn server(answer_bytes: usize) -> TestServer {
    let mut plan = ServerPlan { searcher: Some(Arc::new(Wordy)), ..ServerPlan::new(says("hi")) };
    plan.http.answer_bytes = answer_bytes;
    plan.build().await
}

async fn post(server: &TestServer, path: &str, body: Value) -> Value {
    let response = server.post(path, &body).await;
    assert_eq!(response.status(), 200, "{path}");
    response.json().await.unwrap()
}

#[tokio::test]
async fn a_single_search_leaves_out_its_last_passages_and_says_so() {
    let server = server(100_000).await;
    let answer = post(&server, "/v1/search", json!({"query": "x", "k": 200})).await;
    let hits = answer["hits"].as_array().unwrap();
    let left_out = answer["cut"]["left_out"].as_u64().unwrap() as usize;
    assert!(hits.len() > 50 && hits.len() + left_out == 200 && answer.to_string().len() <= 100_000, "{left_out}");
    assert_eq!(answer["cut"]["limit"], 100_000);
    let small = post(&server, "/v1/search", json!({"query": "x", "k": 3})).await;
    assert_eq!((small["hits"].as_array().unwrap().len(), &small["cut"]), (3, &Value::Null));

    let params = json!({"name": "search", "arguments": {"query": "x", "k": 200}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let answer = post(&server, "/mcp", call).await;
    assert_eq!(answer["result"]["structuredContent"]["cut"]["left_out"], left_out);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.ends_with(&format!("{left_out} more results were left out: ask for fewer (`k`).")), "{text}");

    let few = server_page(30_000).await;
    assert_eq!((&few["has_more"], &few["cut"]["limit"]), (&json!(true), &json!(30_000)));
}

#[tokio::test]
async fn several_queries_leave_out_only_what_their_joined_list_misses() {
    let server = server(100_000).await;
    // Each query finds 100 passages, about 30 of which fit into its half of an answer.
    for (k, complete) in [(10, true), (50, false)] {
        let body = json!({"query": ["x", "y"], "max_num_results": k});
        let page = post(&server, "/v1/vector_stores/default/search", body).await;
        let shown = page["data"].as_array().unwrap().len();
        let left_out = page["cut"]["left_out"].as_u64().unwrap_or(0) as usize;
        assert_eq!((shown + left_out, left_out == 0), (k, complete), "{k}");
        assert_eq!(page["has_more"], !complete, "{k}");
    }
}

async fn server_page(answer_bytes: usize) -> Value {
    let server = server(answer_bytes).await;
    post(&server, "/v1/vector_stores/default/search", json!({"query": "x", "max_num_results": 50})).await
}

#[tokio::test]
async fn a_batch_answers_every_query_and_says_how_many_results_it_left_out() {
    let server = server(1_000_000).await;
    // A request of 12 kB whose answer would have 472 MB without the limit.
    let queries = vec!["x"; 2_600];
    for (path, name, options) in [
        ("/retrieve", "queries", json!({"topk": 200})),
        ("/search", "queries", json!({"topk": 200, "return_scores": true, "return_times": true})),
        ("/query", "query", json!({"retrieval_num": 20})),
    ] {
        let mut body = options;
        body[name] = json!(queries);
        let response = server.post(path, &body).await;
        assert_eq!(response.headers()["content-type"], "application/json");
        let text = response.text().await.unwrap();
        assert!(text.len() < 1_100_000, "{path}: {}", text.len());
        let answer: Value = serde_json::from_str(&text).unwrap();
        let result = answer["result"].as_array().unwrap();
        let left_out = answer["cut"]["left_out"].as_u64().unwrap() as usize;
        assert_eq!(result.len(), 2_600);
        let empty = if path == "/query" { json!({"docs": [], "facts": []}) } else { json!([]) };
        assert_eq!(result.iter().filter(|found| **found == empty).count(), left_out, "{path}");
        assert!(left_out > 2_000 && left_out < 2_600 && result[0] != empty, "{path}: {left_out}");
        if path == "/search" {
            assert_eq!(answer["time"].as_array().unwrap().len(), 2_600 - left_out);
        }
    }
}

#[tokio::test]
async fn a_long_batch_is_streamed_and_broken_off_where_it_fails() {
    let server = server(64 << 20).await;
    let mut queries = vec!["x"; 100];
    let whole = post(&server, "/retrieve", json!({"queries": queries, "topk": 50})).await;
    assert_eq!(whole["result"].as_array().unwrap().len(), 100);
    assert!(whole["cut"].is_null() && whole["result"][99].as_array().unwrap().len() == 50);
    queries[90] = "broken";
    let response = server.post("/retrieve", &json!({"queries": queries, "topk": 50})).await;
    assert_eq!(response.status(), 200);
    let chunks: Vec<_> = response.bytes_stream().collect().await;
    assert!(chunks.last().unwrap().is_err(), "an incomplete answer must not look complete");
    // A short answer has not been sent yet, so its error has a status.
    let response = server.post("/retrieve", &json!({"queries": ["x", "broken"], "topk": 1})).await;
    assert_eq!(response.status(), 504);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["param"], "queries[1]");
}

/// Server whose policy searches once for 50 passages of about 1.5 kB.
async fn searching(evidence: usize, answer_bytes: usize) -> TestServer {
    let mut plan = ServerPlan { searcher: Some(Arc::new(Wordy)), ..ServerPlan::new(script(&loops())) };
    plan.http.traces.evidence = evidence;
    plan.http.answer_bytes = answer_bytes;
    plan.build().await
}

fn found(events: &[Value]) -> &Value {
    events.iter().find(|event| event["type"] == "search_finished").unwrap()
}

#[tokio::test]
async fn a_trace_has_a_bound_in_every_form_and_says_what_is_missing() {
    let server = searching(30_000, 64 << 20).await;
    let ask = json!({"question": "Who?", "model": "routerag", "rag": {"k": 50}});
    let whole = post(&server, "/v1/agent", ask.clone()).await;
    let search = found(whole["trace"].as_array().unwrap());
    let left_out = search["cut"]["left_out"].as_u64().unwrap() as usize;
    let kept = search["hits"].as_array().unwrap().len();
    assert!(kept > 10 && kept + left_out == 50 && search.to_string().len() < 30_000, "{kept} {left_out}");
    assert_eq!(search["cut"]["limit"], 30_000);

    let mut streamed = ask.clone();
    streamed["stream"] = json!(true);
    let text = server.post("/v1/agent", &streamed).await.text().await.unwrap();
    let events: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    assert_eq!(found(&events)["cut"], search["cut"]);

    // The trace is stored as it was sent, and a replay does not count the missing passages as a difference.
    let id = whole["id"].as_str().unwrap();
    let (_, stored) = trace(&server, id).await;
    assert_eq!(stored["searches"][0]["cut"], search["cut"]);
    assert_eq!(stored["searches"][0]["hits"].as_array().unwrap().len(), kept);
    let replay = post(&server, &format!("/v1/traces/{id}/replay"), json!({"mode": "forced"})).await;
    assert_eq!(replay["searches"][0]["equal"], true, "{replay}");

    // The answers of one request share the room.
    let several =
        json!({"model": "routerag", "messages": [{"role": "user", "content": "Who?"}], "n": 2, "rag": {"k": 50}});
    let several = post(&server, "/v1/chat/completions", several).await;
    let (_, stored) = trace(&server, several["id"].as_str().unwrap()).await;
    assert_eq!(stored["searches"][0]["cut"]["limit"], 15_000);
}

#[tokio::test]
async fn the_policy_reads_what_its_trace_has_no_room_for() {
    let observed = async |evidence: usize| {
        let server = searching(evidence, 64 << 20).await;
        let whole = post(&server, "/v1/agent", json!({"question": "Who?", "model": "routerag"})).await;
        let events = whole["trace"].as_array().unwrap().clone();
        let observation = events.iter().find(|event| event["type"] == "observation").unwrap()["text"].clone();
        (found(&events)["hits"].as_array().unwrap().len(), observation)
    };
    let (none, unseen) = observed(0).await;
    let (all, seen) = observed(8 << 20).await;
    assert_eq!((none, all), (0, 3));
    assert!(unseen == seen && seen.as_str().unwrap().contains("xxx"), "{unseen}");
}

#[tokio::test]
async fn log_probabilities_have_a_bound_in_an_answer_of_one_piece() {
    let ask = json!({"question": "Who?", "model": "routerag", "logprobs": 5});
    let tokens = |whole: &Value| -> usize {
        whole["trace"].as_array().unwrap().iter().filter_map(|event| Some(event["tokens"].as_array()?.len())).sum()
    };
    let all = post(&searching(8 << 20, 64 << 20).await, "/v1/agent", ask.clone()).await;
    let some = post(&searching(8 << 20, 10_000).await, "/v1/agent", ask).await;
    let left_out = some["cut"]["left_out"].as_u64().unwrap() as usize;
    assert!(all["cut"].is_null() && tokens(&some) > 0 && tokens(&some) + left_out == tokens(&all), "{left_out}");
}
