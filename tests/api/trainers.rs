//! Requests exactly as the reference systems' trainers send them, over HTTP, with a real index.

use std::sync::Arc;

use serde_json::{Value, json};
use waymark_index::{GraphVariant, Index, Mode, Query, Ranking};

use crate::harness::{ServerPlan, TestServer, says};
use crate::small_index;

/// Builds a server over a real index, a second handle of the index to compare with, and its directory.
async fn test_server() -> (TestServer, Index, tempfile::TempDir) {
    let (dir, index) = small_index::index();
    let searcher = small_index::searcher(index, 64);
    let server = ServerPlan { searcher: Some(Arc::new(searcher)), ..ServerPlan::new(says("hi")) }.build().await;
    let again = Index::open(dir.path(), Arc::new(small_index::HashEmbed::default())).unwrap();
    (server, again, dir)
}

async fn post(server: &TestServer, path: &str, body: Value) -> Value {
    let response = server.post(path, &body).await;
    let status = response.status();
    let answer: Value = response.json().await.unwrap();
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

/// Formats a score as JSON does: with the fewest digits that give the same `f32`.
fn wire(score: f32) -> Value {
    serde_json::from_str(&serde_json::to_string(&score).unwrap()).unwrap()
}

fn dense(text: &str, k: usize) -> Query {
    Query::new(text, Mode::Passage, k).ranking(Ranking::Dense)
}

/// `search_r1/llm_agent/generation.py`, `_batch_search`, and `infer.py`.
#[tokio::test]
async fn search_r1s_trainer_is_answered() {
    let (server, index, _dir) = test_server().await;
    let queries = ["museum in Paris", "river through London", ""];
    let answer = post(&server, "/retrieve", json!({"queries": queries, "topk": 2, "return_scores": true})).await;
    assert_eq!(answer.as_object().unwrap().keys().collect::<Vec<_>>(), ["result"]);
    for (query, list) in queries.iter().zip(answer["result"].as_array().unwrap()) {
        let hits = index.search(&dense(query, 2)).unwrap().hits;
        let expected: Vec<Value> = hits
            .iter()
            .map(|hit| {
                let contents = format!("\"{}\"\n{}", hit.passage.title, hit.passage.text);
                json!({"document": {"id": hit.passage.id, "contents": contents}, "score": wire(hit.score)})
            })
            .collect();
        assert_eq!(list, &json!(expected), "{query}");
    }
    assert_eq!(answer["result"][1][0]["document"]["id"], "thames");
    assert_eq!(answer["result"][2], json!([]), "no text finds nothing");

    let bare =
        post(&server, "/retrieve", json!({"queries": ["museum in Paris"], "topk": 1, "return_scores": false})).await;
    assert_eq!(
        bare,
        json!({"result": [[{"id": "louvre", "contents": "\"Louvre\"\nThe Louvre is a museum in Paris."}]]})
    );
    // As in the reference's server, both stand for its default of three.
    for topk in [json!(null), json!(0)] {
        let answer = post(&server, "/retrieve", json!({"queries": ["Paris"], "topk": topk})).await;
        assert_eq!(answer["result"][0].as_array().unwrap().len(), 3);
    }
    assert_eq!(post(&server, "/retrieve", json!({"queries": []})).await, json!({"result": []}));
}

/// `skyrl_gym/tools/search.py`, `call_search_api`: one query, and documents under `result[0]`.
#[tokio::test]
async fn skyrls_search_tool_is_answered() {
    let (server, _index, _dir) = test_server().await;
    let settings = |mut body: Value| {
        body["topk"] = json!(2);
        body["return_scores"] = json!(true);
        body
    };
    let one = post(&server, "/retrieve", settings(json!({"query": "museum in Paris"}))).await;
    assert_eq!(one, post(&server, "/retrieve", settings(json!({"queries": ["museum in Paris"]}))).await);
    assert_eq!(one["result"][0][0]["document"]["id"], "louvre");
    assert_eq!(post(&server, "/retrieve", json!({"query": ""})).await, json!({"result": [[]]}));
}

/// `train/routerag/llm_agent/generation.py`, `_batch_search`: always with scores and times, and possibly an empty
/// batch.
#[tokio::test]
async fn routerags_trainer_is_answered() {
    let (server, index, _dir) = test_server().await;
    let asked = |queries: Value| json!({"queries": queries, "topk": 3, "return_scores": true, "return_times": true});
    let queries = json!(["[passage] museum in Paris", "museum in Paris", "museum [passage]in Paris", "[passage]", ""]);
    let answer = post(&server, "/search", asked(queries)).await;
    let hits = index.search(&Query { scaled: true, ..dense("museum in Paris", 3) }).unwrap().hits;
    let expected: Vec<Value> = hits
        .iter()
        .map(
            |hit| json!({"document": format!("{}\n{}", hit.passage.title, hit.passage.text), "score": wire(hit.score)}),
        )
        .collect();
    assert_eq!(answer["result"], json!([expected, expected, expected, [], []]));
    assert_eq!(answer["result"][0][0]["score"], 1.0, "dense scores are scaled over all passages");
    let times = answer["time"].as_array().unwrap();
    assert!(times.len() == 5 && times.iter().all(|time| time.as_f64().unwrap() >= 0.0));

    assert_eq!(post(&server, "/search", asked(json!([]))).await, json!({"result": [], "time": []}));
    let all = post(&server, "/search", json!({"queries": ["Paris"], "topk": null, "return_scores": true})).await;
    let scores: Vec<f64> =
        all["result"][0].as_array().unwrap().iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert_eq!((scores.len(), scores[0], scores[3], &all["time"]), (4, 1.0, 0.0, &json!([])));
    let bare = post(&server, "/search", json!({"queries": ["museum in Paris"], "topk": 1})).await;
    assert_eq!(bare["result"], json!([["Louvre\nThe Louvre is a museum in Paris."]]));
}

/// `[graph]` and both tokens together, anywhere in a query.
#[tokio::test]
async fn routerags_tokens_choose_the_search() {
    let (server, index, _dir) = test_server().await;
    let text = "Where does the Mona Lisa hang?";
    let queries = [format!("[graph] {text}"), format!("[graph][passage]{text}"), format!("{text} [passage] [graph]")];
    let body = json!({"queries": queries, "topk": 3, "return_scores": true, "return_times": true});
    let answer = post(&server, "/search", body).await;
    for (list, mode) in answer["result"].as_array().unwrap().iter().zip([Mode::Graph, Mode::Hybrid, Mode::Hybrid]) {
        let hits = index.search(&Query::new(text, mode, 3).ranking(Ranking::Dense)).unwrap().hits;
        let expected: Vec<Value> = hits
            .iter()
            .map(|hit| json!({"document": format!("{}\n{}", hit.passage.title, hit.passage.text), "score": wire(hit.score)}))
            .collect();
        assert_eq!(list, &json!(expected), "{mode}");
        assert_eq!(hits.len(), 3);
        let graph = hits[0].path.graph.as_ref().unwrap();
        let score = f64::from(hits[0].score);
        // PageRank mass for the graph alone, sums of reciprocal ranks for both.
        let other = if mode == Mode::Graph { graph.mass } else { 2.0 / 61.0 };
        assert!((score - other).abs() < 1e-3, "{mode}: {score} and {other}");
    }
}

/// `eval/Evaluator.py`: passages and facts for at least one query.
#[tokio::test]
async fn graphrag_r1s_evaluation_is_answered() {
    let (server, index, _dir) = test_server().await;
    let text = "Where does the Mona Lisa hang?";
    let answer = post(&server, "/query", json!({"query": [text, "the Seine"], "retrieval_num": 3})).await;
    assert_eq!(answer["result"].as_array().unwrap().len(), 2);
    let query = Query {
        triples: 20,
        graph: GraphVariant::GraphRagR1.into(),
        ..Query::new(text, Mode::Triples, 3).ranking(Ranking::Dense)
    };
    let evidence = index.search(&query).unwrap();
    let docs: Vec<_> = evidence.hits.iter().map(|hit| format!("{}\n{}", hit.passage.title, hit.passage.text)).collect();
    let facts: Vec<_> = evidence.triples.iter().map(|fact| [&fact.subject, &fact.relation, &fact.object]).collect();
    assert_eq!(answer["result"][0], json!({"docs": docs, "facts": facts}));
    assert_eq!(answer["result"][0]["facts"][0], json!(["mona lisa", "hangs in", "louvre"]));
    assert_eq!(answer["result"][0]["facts"].as_array().unwrap().len(), 6, "twenty facts are asked for, six there are");
    let answer = post(&server, "/query", json!({"query": [text]})).await;
    assert_eq!(answer["result"][0]["docs"].as_array().unwrap().len(), 4, "five where nothing is said, four there are");
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_by_name() {
    let (server, _, _dir) = test_server().await;
    for (path, body, param) in [
        ("/retrieve", json!({"topk": 3}), "queries"),
        ("/retrieve", json!({"queries": "Paris"}), "queries"),
        ("/retrieve", json!({"query": ["Paris"]}), "query"),
        ("/retrieve", json!({"query": "Paris", "queries": ["Paris"]}), "query"),
        ("/retrieve", json!({"queries": ["Paris"], "topk": -1}), "topk"),
        ("/retrieve", json!({"queries": ["Paris"], "topk": 201}), "topk"),
        ("/retrieve", json!({"queries": ["Paris"], "colour": 1}), "colour"),
        ("/search", json!({"queries": ["Paris", 4]}), "queries[1]"),
        ("/search", json!({"queries": ["Paris"], "topk": 1000}), "topk"),
        ("/search", json!({"queries": vec![""; 9000], "topk": 1}), "queries"),
        ("/search", json!({"queries": vec![""; 2622]}), "queries"),
        ("/retrieve", json!({"queries": vec![""; 8192], "topk": 65}), "queries"),
        ("/query", json!({"query": []}), "query"),
        ("/query", json!({"query": ["Paris"], "retrieval_num": 0}), "retrieval_num"),
        ("/query", json!({"query": ["Paris"], "retrieval_num": 21}), "retrieval_num"),
    ] {
        let response = server.post(path, &body).await;
        assert_eq!(response.status(), 400, "{path} {body}");
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["param"], param, "{path} {body}: {answer}");
    }
    let bare = ServerPlan { searcher: None, ..ServerPlan::new(says("hi")) }.build().await;
    for (path, body) in [("/retrieve", json!({"queries": ["x"]})), ("/search", json!({"queries": ["x"]}))] {
        let refused: Value = bare.post(path, &body).await.json().await.unwrap();
        assert_eq!(refused["error"]["code"], "not_configured");
    }
}

/// A batch takes only its share of the searcher's slots, so a batch much larger than them is answered, in order.
#[tokio::test]
async fn a_large_batch_is_answered_in_order_and_within_the_limits() {
    let (_dir, index) = small_index::index();
    let searcher = small_index::searcher(index, 6);
    let server = ServerPlan { searcher: Some(Arc::new(searcher)), ..ServerPlan::new(says("hi")) }.build().await;
    let queries: Vec<&str> =
        (0..600).map(|i| if i % 3 == 0 { "river through London" } else { "museum in Paris" }).collect();
    let answer = post(&server, "/retrieve", json!({"queries": queries, "topk": 1})).await;
    for (i, list) in answer["result"].as_array().unwrap().iter().enumerate() {
        assert_eq!(list[0]["id"], if i % 3 == 0 { "thames" } else { "louvre" });
    }
    assert_eq!(answer["result"].as_array().unwrap().len(), 600);
}
