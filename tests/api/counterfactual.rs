//! Counterfactual replays: excluded passages, another kind of search, another `k`.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark_agent::{MAX_WITHOUT, Search, SearchError, SearchQuery};
use waymark_engine::mock::Lines;
use waymark_index::{Evidence, Hit, HitPath, Mode, Passage};
use waymark_models::chat::ChatTemplate;

use crate::harness::{ServerPlan, TestServer, answer, says, script, with_fields};
use crate::replay::check_equal;
use crate::traces::trace;

/// IDs, titles and texts, best first, for every query.
const PASSAGES: [[&str; 3]; 4] = [
    ["faust", "Faust", "A tragedy. Goethe wrote it."],
    ["weimar", "Weimar", "Goethe and Schiller lived there."],
    ["tell", "Wilhelm Tell", "Schiller wrote it."],
    ["thames", "Thames", "A river."],
];

/// Searcher that returns as many passages as requested, and records the queries and the numbers of passages.
#[derive(Debug, Default)]
struct Row(Mutex<Vec<(Mode, usize)>>);

impl Search for Row {
    fn search(&self, query: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let mode = query.wanted.mode;
        let k = query.wanted.k;
        self.0.lock().unwrap().push((mode, k));
        let hit = |([id, title, text], rank): ([&str; 3], usize)| {
            let passage = Passage { id: id.into(), title: title.into(), text: text.into() };
            Hit { rank, score: 1.0 / rank as f32, passage, metadata: None, path: HitPath::default() }
        };
        let hits = PASSAGES.into_iter().zip(1..).take(k).map(hit).collect();
        Box::pin(async move { Ok(Evidence::of(3, mode, hits)) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Graph]
    }
}

/// Builds a server that searches once and answers according to the evidence. Its template opens no reply, so the mock's
/// rule sees the whole sequence including evidence.
async fn test_server() -> (TestServer, Arc<Row>) {
    const BARE: &str = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    const SEARCH: &str = "<think>I must look.</think>\n<search>[passage] Faust</search>";
    let lines = Lines::new([SEARCH, "<answer> nobody </answer>"])
        .rule("Goethe wrote it", [SEARCH, "<answer> Goethe </answer>"])
        .terminator("</information>\n\n");
    let row = Arc::new(Row::default());
    let template = ChatTemplate::new(BARE, "", "<|im_end|>").unwrap();
    let plan = ServerPlan { searcher: Some(row.clone()), template, ..ServerPlan::new(script(&lines)) };
    (plan.build().await, row)
}

/// Asks who wrote Faust, with two passages per search.
async fn ask(server: &TestServer) -> Value {
    let body = json!({"question": "Who wrote Faust?", "model": "routerag", "seed": 7, "rag": {"k": 2}});
    let response = server.post("/v1/agent", &body).await;
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

async fn post(server: &TestServer, id: &Value, body: &Value) -> (u16, Value) {
    let response = server.post(&format!("/v1/traces/{}/replay", id.as_str().unwrap()), body).await;
    answer(response).await
}

/// Runs a free replay with the given changes.
async fn replay(server: &TestServer, id: &Value, otherwise: Value) -> Value {
    let body = with_fields(json!({"mode": "free"}), otherwise.clone());
    let (status, replay) = post(server, id, &body).await;
    assert_eq!(status, 200, "{replay}");
    replay
}

/// Returns the cited passages.
fn cited(told: &Value) -> Vec<&str> {
    told["citations"].as_array().unwrap().iter().map(|cited| cited["passage"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_passage_that_is_left_out_is_nowhere() {
    let (server, row) = test_server().await;
    let told = ask(&server).await;
    assert_eq!((&told["answer"], cited(&told)), (&json!("Goethe"), vec!["faust", "weimar"]));
    // Neither an unknown passage nor a repeated one changes the result.
    let without = json!(["faust", "nowhere", "faust"]);
    let replay = replay(&server, &told["id"], json!({"without": without, "store": true})).await;
    assert_eq!((&replay["answer"], &replay["answer_changed"]), (&json!("nobody"), &json!(true)));
    assert_eq!((cited(&replay), &replay["ids_equal"]), (vec![], &json!(false)));
    let search = &replay["searches"][0];
    assert_eq!(search["lost"], json!([{"id": "faust", "rank": 1}]));
    assert_eq!(search["added"], json!([{"id": "tell", "rank": 2}]));
    assert_eq!(search["moved"], json!([{"id": "weimar", "then": 2, "now": 1}]));
    // Two more than requested, one for each passage that is left out.
    assert_eq!(*row.0.lock().unwrap(), [(Mode::Passage, 2), (Mode::Passage, 4)]);

    let (status, kept) = trace(&server, replay["trace"].as_str().unwrap()).await;
    assert_eq!((status, &kept["answer"], &kept["seed"]), (200, &json!("nobody"), &json!(7)), "{kept}");
    assert_eq!((&kept["options"]["without"], &kept["options"]["k"]), (&json!(["faust", "nowhere"]), &json!(2)));
    let hits = kept["searches"][0]["hits"].as_array().unwrap();
    let found: Vec<_> = hits.iter().map(|hit| (&hit["passage"]["id"], &hit["rank"])).collect();
    assert_eq!(found, [(&json!("weimar"), &json!(1)), (&json!("tell"), &json!(2))]);
    let text = kept["text"].as_str().unwrap();
    assert!(text.contains("Doc 1(Title: Weimar)") && text.contains("Doc 2(Title: Wilhelm Tell)"), "{text}");
    assert!(!text.contains("tragedy") && !text.contains("Thames"), "{text}");
    server.quiet().await;
}

/// A client's loop to find the cited passage that an answer depends on. Each of its replays is deterministic.
#[tokio::test]
async fn an_answer_hangs_on_some_of_what_it_cites() {
    let (server, _) = test_server().await;
    let told = ask(&server).await;
    for (passage, changed, rest) in
        [("faust", true, vec![]), ("weimar", false, vec!["faust"]), ("thames", false, vec!["faust", "weimar"])]
    {
        let first = replay(&server, &told["id"], json!({"without": [passage]})).await;
        assert_eq!((&first["answer_changed"], cited(&first)), (&json!(changed), rest), "{passage}: {first}");
        // This passage was not found in the first place.
        assert_eq!((&first["ids_equal"], &first["trace"]), (&json!(passage == "thames"), &Value::Null));
        assert_eq!(first, replay(&server, &told["id"], json!({"without": [passage]})).await);
    }
    let listed: Value = server.get("/v1/traces").await.json().await.unwrap();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "nothing is kept of them");
    server.quiet().await;
}

#[tokio::test]
async fn a_search_can_be_another_one() {
    let (server, row) = test_server().await;
    let told = ask(&server).await;
    let replay = replay(&server, &told["id"], json!({"search": "graph", "k": 1, "store": true})).await;
    assert_eq!((&replay["answer_changed"], cited(&replay)), (&json!(false), vec!["faust"]), "{replay}");
    assert_eq!(*row.0.lock().unwrap(), [(Mode::Passage, 2), (Mode::Graph, 1)]);
    let made: Vec<_> = replay["searches"].as_array().unwrap().iter().map(|search| &search["made"]).collect();
    assert_eq!(made, ["then", "now"]);
    let (_, kept) = trace(&server, replay["trace"].as_str().unwrap()).await;
    assert_eq!((&kept["options"]["mode"], &kept["options"]["k"]), (&json!("graph"), &json!(1)));
    check_equal(&server, replay["trace"].as_str().unwrap()).await;
}

/// The trace's request sets a passage ranking, which graph search does not use.
#[tokio::test]
async fn another_search_passes_over_what_it_does_not_read() {
    let (server, row) = test_server().await;
    let body = json!({"question": "Who wrote Faust?", "model": "routerag", "rag": {"k": 2, "ranking": "bm25"}});
    let told: Value = server.post("/v1/agent", &body).await.json().await.unwrap();
    replay(&server, &told["id"], json!({"search": "graph"})).await;
    assert_eq!(*row.0.lock().unwrap(), [(Mode::Passage, 2), (Mode::Graph, 2)]);
}

#[tokio::test]
async fn what_is_kept_of_it_can_be_run_again_and_leaves_out_the_same() {
    let (server, _) = test_server().await;
    let told = ask(&server).await;
    let first = replay(&server, &told["id"], json!({"without": ["faust"], "store": true})).await;
    check_equal(&server, first["trace"].as_str().unwrap()).await;
    let more = replay(&server, &first["trace"], json!({"without": ["tell", "faust"], "store": true})).await;
    let (_, kept) = trace(&server, more["trace"].as_str().unwrap()).await;
    assert_eq!(kept["options"]["without"], json!(["faust", "tell"]));
    let hits = kept["searches"][0]["hits"].as_array().unwrap();
    let found: Vec<_> = hits.iter().map(|hit| &hit["passage"]["id"]).collect();
    assert_eq!(found, ["weimar", "thames"]);
    assert_eq!(more["answer_changed"], false, "it was `nobody` before");
}

#[tokio::test]
async fn where_nothing_is_searched_nothing_changes() {
    let server = TestServer::new(says("Goethe")).await;
    let whole: Value =
        server.post("/v1/agent", &json!({"question": "Who?", "model": "plain"})).await.json().await.unwrap();
    let replay = replay(&server, &whole["id"], json!({"without": ["p1"]})).await;
    assert_eq!((&replay["ids_equal"], &replay["answer_changed"]), (&json!(true), &json!(false)));
    assert_eq!(replay["citations"], json!([]));
    for (name, value) in [("search", json!("passage")), ("k", json!(1))] {
        let (status, refused) = post(&server, &whole["id"], &json!({"mode": "free", name: value})).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(name)), "{refused}");
        assert_eq!(refused["error"]["message"], format!("`{name}`: this policy does not search"));
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let (server, _) = test_server().await;
    let id = &ask(&server).await["id"];
    let ids = |count: usize| (0..count).map(|id| id.to_string()).collect::<Vec<_>>();
    let free = |name: &str, value: Value| json!({"mode": "free", name: value});
    let forced = |name: &str, value: Value| json!({"mode": "forced", name: value});
    for (body, code, param) in [
        (forced("without", json!(["faust"])), "invalid_value", "without"),
        (forced("search", json!("graph")), "invalid_value", "search"),
        (forced("k", json!(1)), "invalid_value", "k"),
        (forced("store", json!(true)), "invalid_value", "store"),
        (free("without", json!([])), "invalid_value", "without"),
        (free("without", json!(ids(MAX_WITHOUT + 1))), "invalid_value", "without"),
        (free("without", json!(["faust", ""])), "invalid_value", "without[1]"),
        (free("without", json!("faust")), "invalid_value", "without"),
        (free("k", json!(0)), "invalid_value", "k"),
        (free("k", json!(201)), "invalid_value", "k"),
        (free("search", json!("psychic")), "invalid_value", "search"),
        (free("search", json!("hybrid")), "unsupported_parameter", "search"),
        (free("search", json!("triples")), "unsupported_parameter", "search"),
        (free("seed", json!(1)), "unknown_parameter", "seed"),
    ] {
        let (status, refused) = post(&server, id, &body).await;
        let error = &refused["error"];
        assert_eq!((status, &error["code"], &error["param"]), (400, &json!(code), &json!(param)), "{body}: {refused}");
    }
    let nothing = json!({"mode": "forced", "without": null, "search": null, "k": null, "store": false});
    assert_eq!(post(&server, id, &nothing).await.0, 200);
    // Passages excluded in the trace count as well.
    let most = replay(&server, id, json!({"without": ids(MAX_WITHOUT), "store": true})).await;
    let (status, refused) = post(&server, &most["trace"], &free("without", json!(["faust"]))).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("without")), "{refused}");
    server.quiet().await;
}
