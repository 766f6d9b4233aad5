//! The remaining routes.

use std::sync::Arc;

use base64::Engine as _;
use serde_json::{Value, json};
use waymark_index::{GraphOptions, GraphVariant, Index, Mode, Query};
use waymark_runtime::reranking::Reranking;

use crate::harness::{Letters, ServerPlan, TestServer, answer, says, script, with_fields};
use crate::traces::loops;

#[tokio::test]
async fn models_are_listed_and_found_by_name() {
    let server = TestServer::new(says("hi")).await;
    let list: Value = server.get("/v1/models").await.json().await.unwrap();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["plain", "routerag", "a/b"]);
    for path in ["/v1/models/a%2Fb", "/v1/models/a/b"] {
        let model: Value = server.get(path).await.json().await.unwrap();
        assert_eq!((&model["id"], &model["object"]), (&json!("a/b"), &json!("model")));
        // A time after 2020.
        assert!(model["created"].as_u64().unwrap() > 1_600_000_000 && model["owned_by"].is_string());
        assert_eq!((&model["parent"], &model["protocol"]), (&json!("mock"), &json!("plain")));
    }
    let unknown = server.get("/v1/models/x%2Fy").await;
    assert_eq!(unknown.status(), 404);
    let unknown: Value = unknown.json().await.unwrap();
    assert_eq!((&unknown["error"]["code"], &unknown["error"]["param"]), (&json!("model_not_found"), &json!("model")));
}

#[tokio::test]
async fn embeddings_as_numbers_and_as_base64() {
    let server = ServerPlan { embedder: Some(Arc::new(Letters)), ..ServerPlan::new(says("hi")) }.build().await;
    let embed = async |body: Value| -> (u16, Value) {
        let response = server.post("/v1/embeddings", &body).await;
        answer(response).await
    };
    let (status, answer) = embed(json!({"model": "letters", "input": ["abba", "c"], "encoding_format": "float"})).await;
    assert_eq!(status, 200, "{answer}");
    let expected = json!({
        "object": "list",
        "model": "letters",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [2.0, 2.0, 0.0]},
            {"object": "embedding", "index": 1, "embedding": [0.0, 0.0, 1.0]},
        ],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    });
    assert_eq!(answer, expected);
    let listed: Value = server.get("/v1/models/letters").await.json().await.unwrap();
    assert_eq!((&listed["parent"], &listed["protocol"]), (&json!("letters@0123"), &json!("embedding")));
    let (_, answer) = embed(json!({"model": "letters@0123", "input": "abba", "encoding_format": "base64"})).await;
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(answer["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let numbers: Vec<f32> = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(numbers, [2.0, 2.0, 0.0]);
    // Several chunks, whose order must be kept.
    let many: Vec<String> = (0..100).map(|n| "a".repeat(n + 1)).collect();
    let (_, answer) = embed(json!({"model": "letters", "input": many, "dimensions": 3, "user": null})).await;
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), 100);
    for (index, item) in data.iter().enumerate() {
        assert_eq!((&item["index"], &item["embedding"][0]), (&json!(index), &json!((index + 1) as f32)));
    }
    for (change, status, param) in [
        (json!({"input": []}), 400, "input"),
        (json!({"input": ["a", ""]}), 400, "input[1]"),
        (json!({"input": [1, -2]}), 400, "input"),
        (json!({"input": [[1], ["a"]]}), 400, "input"),
        (json!({"input": {"a": 1}}), 400, "input"),
        (json!({"dimensions": 2}), 400, "dimensions"),
        (json!({"encoding_format": "roman"}), 400, "encoding_format"),
        (json!({"model": "other"}), 404, "model"),
        (json!({"colour": 1}), 400, "colour"),
        // OpenAI allows 2048 inputs.
        (json!({"input": vec!["a"; 2049]}), 400, "input"),
    ] {
        let body = with_fields(json!({"model": "letters", "input": "a"}), change.clone());
        let (got, answer) = embed(body).await;
        assert_eq!((got, &answer["error"]["param"]), (status, &json!(param)), "{change}: {answer}");
    }
    let bare = TestServer::new(says("hi")).await;
    let refused: Value = bare.post("/v1/embeddings", &json!({"model": "x", "input": "a"})).await.json().await.unwrap();
    assert_eq!(refused["error"]["code"], "not_configured");
}

#[tokio::test]
async fn a_chat_with_an_encoder_names_its_route() {
    let encoders = ServerPlan {
        embedder: Some(Arc::new(Letters)),
        reranker: Some(Arc::new(Reranking::Mock)),
        ..ServerPlan::new(says("hi"))
    };
    let server = encoders.build().await;
    for (model, words) in
        [("letters", "is an embedder: use /v1/embeddings"), ("words", "is a reranker: use /v1/rerank")]
    {
        for (path, fields) in [
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hello"}]})),
            ("/v1/completions", json!({"prompt": "hello"})),
            ("/v1/responses", json!({"input": "hello"})),
            ("/v1/agent", json!({"question": "Who?"})),
            ("/tokenize", json!({"prompt": "hello"})),
        ] {
            let body = with_fields(fields, json!({"model": model}));
            let (status, refused) = answer(server.post(path, &body).await).await;
            let error = &refused["error"];
            assert_eq!((status, &error["code"], &error["param"]), (404, &json!("model_not_found"), &json!("model")));
            assert!(error["message"].as_str().unwrap().contains(words), "{path}: {refused}");
        }
    }
}

#[tokio::test]
async fn search_finds_without_a_model() {
    let server = TestServer::new(says("hi")).await;
    let answer: Value = server.post("/v1/search", &json!({"query": "Faust", "k": 2})).await.json().await.unwrap();
    assert_eq!(
        (&answer["object"], &answer["query"], &answer["mode"], &answer["snapshot"]),
        (&json!("search"), &json!("Faust"), &json!("passage"), &json!(3))
    );
    assert_eq!(answer["hits"][0]["passage"]["title"], "Faust");
    for (body, param) in [
        (json!({"query": " "}), json!("query")),
        (json!({}), json!("query")),
        (json!({"query": "x", "k": 0}), json!("k")),
        (json!({"query": "x", "k": 201}), json!("k")),
        (json!({"query": "x", "ranking": "best"}), json!("ranking")),
        (json!({"query": "x", "triples": 201}), json!("triples")),
        (json!({"query": "x", "entities": vec!["a"; 65]}), json!("entities")),
        (json!({"query": "x", "ranking": "dense", "mode": "graph"}), json!("ranking")),
        (json!({"query": "x", "ranking": "dense", "mode": "kag"}), json!("ranking")),
        (json!({"query": "x", "graph": {}}), json!("graph")),
        (json!({"query": "x", "graph": {}, "mode": "kag"}), json!("graph")),
        (json!({"query": "x", "triples": 3, "mode": "hybrid"}), json!("triples")),
        (json!({"query": "x", "entities": ["a"]}), json!("entities")),
        (json!({"query": "x", "kag": {}, "mode": "triples"}), json!("kag")),
        (json!({"query": "x", "explain": "yes"}), json!("explain")),
        (json!({"query": "x", "graph": "lightrag"}), json!("graph")),
        (json!({"query": "x", "graph": {"variant": "lightrag"}}), json!("graph.variant")),
        (json!({"query": "x", "graph": {"linking_top_k": 0}}), json!("graph.linking_top_k")),
        (json!({"query": "x", "graph": {"damping": 1.0}}), json!("graph.damping")),
        (json!({"query": "x", "graph": {"passage_weight": -0.1}}), json!("graph.passage_weight")),
        (json!({"query": "x", "graph": {"colour": 1}}), json!("graph.colour")),
        (json!({"query": "x", "mode": "psychic"}), json!("mode")),
        (json!({"query": "x", "filters": {"type": "eq", "key": "a"}}), json!("filters.value")),
        (
            json!({"query": "x", "filters": {"type": "and", "filters": [{"type": "no"}]}}),
            json!("filters.filters[0].type"),
        ),
        (json!({"query": "x", "filters": {"type": "or", "filters": []}}), json!("filters")),
        (json!({"query": "x", "filters": {"type": "eq", "key": "a", "value": 1, "of": 1}}), json!("filters.of")),
        (json!({"query": "x", "colour": 1}), json!("colour")),
    ] {
        let response = server.post("/v1/search", &body).await;
        assert_eq!(response.status(), 400, "{body}");
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["param"], param, "{body}");
    }
    let bare = ServerPlan { searcher: None, ..ServerPlan::new(says("hi")) }.build().await;
    let refused = bare.post("/v1/search", &json!({"query": "x"})).await;
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], "not_configured");
    let refused = bare.post("/v1/agent", &json!({"question": "x", "model": "routerag"})).await;
    assert_eq!(refused.status(), 400);
}

#[tokio::test]
async fn a_graph_search_is_explained_where_it_is_asked_for() {
    let (dir, index) = crate::small_index::index();
    let searcher = crate::small_index::searcher(index, 8);
    let server = ServerPlan { searcher: Some(Arc::new(searcher)), ..ServerPlan::new(says("hi")) }.build().await;
    let again = Index::open(dir.path(), Arc::new(crate::small_index::HashEmbed::default())).unwrap();
    let text = "Where does the Mona Lisa hang?";
    let search = async |extra: Value| -> Value {
        let body = with_fields(json!({"query": text, "mode": "graph", "k": 3}), extra.clone());
        let response = server.post("/v1/search", &body).await;
        let status = response.status();
        let answer = response.json::<Value>().await.unwrap();
        assert_eq!(status, 200, "{body}: {answer}");
        answer
    };
    let whole =
        |query: Query| serde_json::from_str::<Value>(&serde_json::to_string(&again.search(&query).unwrap()).unwrap());

    let told = search(json!({"explain": true})).await;
    let expected = whole(Query::new(text, Mode::Graph, 3).explained()).unwrap();
    for part in ["hits", "walk", "snapshot", "mode"] {
        assert_eq!(told[part], expected[part], "{part}");
    }
    assert_eq!(told["walk"]["facts"][0]["object"], "louvre");
    assert!(
        told["walk"]["phrases"].as_array().unwrap().len() == 5 && told["hits"][0]["path"]["graph"]["via"].is_array()
    );

    let bare = search(json!({})).await;
    assert_eq!((&bare["walk"], &bare["hits"][0]["path"]["graph"]["via"]), (&Value::Null, &Value::Null));
    assert_eq!(bare["hits"][0]["path"]["graph"]["mass"], told["hits"][0]["path"]["graph"]["mass"]);

    let options =
        GraphOptions { linking_top_k: 1, damping: 0.25, passage_weight: 0.5, ..GraphVariant::HippoRag.into() };
    let tuned = search(json!({"explain": true, "graph": {
        "variant": "hippo_rag", "linking_top_k": 1, "damping": 0.25, "passage_weight": 0.5,
    }}))
    .await;
    let expected = whole(Query { graph: options, ..Query::new(text, Mode::Graph, 3).explained() }).unwrap();
    assert_eq!((&tuned["hits"], &tuned["walk"]), (&expected["hits"], &expected["walk"]));
    assert_eq!(tuned["walk"]["facts"].as_array().unwrap().len(), 1);

    let triples = search(json!({"mode": "triples", "triples": 2})).await;
    assert_eq!(triples["triples"].as_array().unwrap().len(), 2);
    assert_eq!(triples["triples"][0]["relation"], "hangs in");
    let hybrid = search(json!({"mode": "hybrid", "ranking": "dense"})).await;
    assert!(hybrid["hits"][0]["path"]["dense"].is_object() && hybrid["hits"][0]["path"]["graph"].is_object());
}

#[tokio::test]
async fn the_graph_search_is_a_name_or_an_object_on_every_route() {
    let (_dir, index) = crate::small_index::index();
    let searcher = crate::small_index::searcher(index, 8);
    let server = ServerPlan { searcher: Some(Arc::new(searcher)), ..ServerPlan::new(script(&loops())) }.build().await;
    for graph in [json!("waymark"), json!({"variant": "waymark"})] {
        let rag = json!({"model": "routerag", "rag": {"graph": graph}});
        let body = with_fields(json!({"question": "Who?"}), rag.clone());
        let (status, told) = answer(server.post("/v1/agent", &body).await).await;
        assert_eq!(status, 200, "{told}");
        let id = told["id"].as_str().unwrap();
        let trace: Value = server.get(&format!("/v1/traces/{id}")).await.json().await.unwrap();
        assert_eq!(trace["options"]["graph"], "waymark", "{trace}");
        let (status, told) = server.chat(&crate::golden::ask(rag)).await;
        assert_eq!(status, 200, "{told}");
        let body = json!({"query": "Mona Lisa", "mode": "graph", "graph": graph, "explain": true});
        let (status, found) = answer(server.post("/v1/search", &body).await).await;
        assert_eq!((status, &found["walk"]["variant"]), (200, &json!("waymark")), "{found}");
    }
    for (graph, param, words) in [
        (json!("lightrag"), "rag.graph", "expected one of `route_rag`"),
        (json!({"variant": "lightrag"}), "rag.graph.variant", "expected one of `route_rag`"),
        (json!(3), "rag.graph", "expected the name of a graph search"),
        // A record of the episode has no room for more than the name.
        (json!({"variant": "waymark", "damping": 0.5}), "rag.graph.damping", "rag.graph.damping"),
    ] {
        let body = json!({"question": "Who?", "model": "routerag", "rag": {"graph": graph}});
        let (status, refused) = answer(server.post("/v1/agent", &body).await).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(words), "{refused}");
    }
}

#[tokio::test]
async fn the_agent_tells_its_trace_as_events() {
    let server = TestServer::new(script(&loops())).await;
    let body = json!({"question": "Who wrote Faust?", "model": "routerag", "stream": true});
    let response = server.post("/v1/agent", &body).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["cache-control"], "no-cache");
    let stream = response.text().await.unwrap();
    let mut names = Vec::new();
    let mut answer = String::new();
    for (number, message) in (1..).zip(stream.split_terminator("\n\n")) {
        let [id, event, data] = message.split('\n').collect::<Vec<_>>()[..] else { panic!("{message}") };
        assert_eq!(id, format!("id: {number}"));
        let event = event.strip_prefix("event: ").unwrap();
        let data = data.strip_prefix("data: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], event);
        answer += if event == "answer" { data["text"].as_str().unwrap() } else { "" };
        if names.last().is_none_or(|last| last != event) {
            names.push(event.to_owned());
        }
    }
    assert_eq!(answer, "Goethe");
    assert_eq!((names.first().unwrap().as_str(), names.last().unwrap().as_str()), ("started", "finished"));
    let order = ["think", "query", "search_started", "search_finished", "observation", "think", "answer"];
    let mut rest = names.iter();
    for name in order {
        assert!(rest.any(|seen| seen == name), "{name} is missing or out of order in {names:?}");
    }
}

#[tokio::test]
async fn the_agent_tells_its_trace_at_once() {
    let server = TestServer::new(script(&loops())).await;
    let body = json!({"question": "Who wrote Faust?", "model": "routerag"});
    let answer: Value = server.post("/v1/agent", &body).await.json().await.unwrap();
    assert_eq!(
        (&answer["answer"], &answer["finish_reason"], &answer["object"]),
        (&json!("Goethe"), &json!("stop"), &json!("agent.episode"))
    );
    assert_eq!((&answer["searches"], &answer["question"]), (&json!(1), &json!("Who wrote Faust?")));
    let types: Vec<_> =
        answer["trace"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((types[0], *types.last().unwrap()), ("started", "finished"));
    assert_eq!(types.iter().filter(|kind| **kind == "answer").count(), 1, "deltas are joined: {types:?}");
    for (body, param) in [
        (json!({"question": " "}), "question"),
        (json!({"question": "x", "max_tokens": 0}), "max_tokens"),
        (json!({"question": "x", "temperature": 3}), "temperature"),
        (json!({"question": "x", "logprobs": 21}), "logprobs"),
        (json!({"question": "x".repeat(40_000)}), "question"),
        (json!({"question": "x", "messages": []}), "messages"),
        (json!({"question": "x", "rag": {"trace": false}}), "rag.trace"),
        (json!({"question": "x", "resumable": true}), "resumable"),
    ] {
        let refused: Value = server.post("/v1/agent", &body).await.json().await.unwrap();
        assert_eq!(refused["error"]["param"], param, "{body}");
    }
}

#[tokio::test]
async fn metrics_show_the_engine_and_the_requests() {
    let server = TestServer::new(script(&loops())).await;
    let body = json!({"question": "Who wrote Faust?", "model": "routerag"});
    assert_eq!(server.post("/v1/agent", &body).await.status(), 200);
    server.post("/v1/agent", &json!({})).await;
    let response = server.get("/metrics").await;
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = response.text().await.unwrap();
    for line in [
        "waymark_http_requests_total{route=\"/v1/agent\",status=\"200\"} 1",
        "waymark_http_requests_total{route=\"/v1/agent\",status=\"400\"} 1",
        "waymark_episodes_total{policy=\"routerag\",outcome=\"stop\"} 1",
        "waymark_searches_total 1",
        "waymark_first_text_seconds_count{policy=\"routerag\"} 1",
        "waymark_episode_seconds_count{policy=\"routerag\"} 1",
        "waymark_prefill_tokens_total ",
        "waymark_prefill_tokens_recomputed_total 0",
        "waymark_prefix_cache_hit_tokens_total ",
        "waymark_step_seconds_bucket{le=\"+Inf\"} ",
        "waymark_gap_seconds_count ",
        "waymark_queue_seconds_count ",
        "waymark_batch_rows_count ",
        "waymark_blocks_free ",
        "waymark_invariant_violations_total 0",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line:?} is missing in\n{text}");
    }
}

#[tokio::test]
async fn health_and_readiness() {
    let backend = says("hi");
    let faults = backend.faults();
    let server = TestServer::new(backend).await;
    assert_eq!(server.get("/health").await.json::<Value>().await.unwrap(), json!({"status": "ok"}));
    assert_eq!(server.get("/ready").await.json::<Value>().await.unwrap(), json!({"status": "ready"}));
    assert!(server.get("/").await.text().await.unwrap().starts_with("Waymark"));
    let json = server.client.get(server.url("/")).header("accept", "application/json").send().await.unwrap();
    assert!(json.json::<Value>().await.unwrap()["message"].as_str().unwrap().starts_with("Waymark"));
    faults.broken_from(0);
    let ask = json!({"model": "plain", "messages": [{"role": "user", "content": "x"}]});
    for _ in 0..20 {
        let (status, _) = server.chat(&ask).await;
        assert!(status == 500 || status == 503);
    }
    let ready = server.get("/ready").await;
    assert_eq!(ready.status(), 503);
    assert_eq!(ready.json::<Value>().await.unwrap()["error"]["code"], "engine_unavailable");
    assert_eq!(server.get("/health").await.status(), 200);
}
