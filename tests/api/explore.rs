//! Views of the index: its size, questions it answers, its nodes, their edges, its passages.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use waymark::api::Library;
use waymark_agent::{SearchLimits, Searcher};
use waymark_index::{BuildOptions, CommitOptions, Corpus, Document, LiveIndex, OpenOptions, build};

use crate::harness::{PATIENCE, ServerPlan, TestServer, says};
use crate::small_index::HashEmbed;

/// Documents with triples that make a question of two hops.
fn documents() -> Vec<Value> {
    let triples: Vec<Value> = (0..45).map(|n| json!(["Paris", "has street", format!("Rue {n}")])).collect();
    vec![
        json!({"id": "mona", "title": "Mona Lisa", "text": "Leonardo painted the Mona Lisa, which hangs in the Louvre.",
               "metadata": {"topic": "art"},
               "triples": [["Mona Lisa", "was painted by", "Leonardo"], ["Mona Lisa", "hangs in", "Louvre"]]}),
        json!({"id": "leonardo", "title": "Leonardo", "text": "Leonardo was born in Vinci.",
               "triples": [["Leonardo", "was born in", "Vinci"], ["Leonardo", "drew", "Mona Lisa"]]}),
        json!({"id": "town/paris", "title": "Paris", "text": "Paris has streets.", "triples": triples}),
        // IDs of two chunks of a file, which the API links to each other.
        json!({"id": "book#1", "title": "", "text": "First chunk of a book.", "triples": []}),
        json!({"id": "book#2", "title": "", "text": "Second chunk of a book.", "triples": []}),
    ]
}

async fn server(with_triples: bool, writable: bool) -> (tempfile::TempDir, TestServer) {
    let dir = tempfile::tempdir().unwrap();
    let documents = documents().into_iter().map(|mut document| {
        if !with_triples {
            document.as_object_mut().unwrap().remove("triples");
        }
        serde_json::from_value::<Document>(document).unwrap()
    });
    let corpus = Corpus::from_documents("shelf of art", documents.collect());
    build(corpus, &HashEmbed::default(), dir.path(), &BuildOptions::default(), &()).unwrap();
    let live = LiveIndex::open(dir.path(), Arc::new(HashEmbed::default()), OpenOptions::default()).unwrap();
    let live = Arc::new(live);
    let limits = SearchLimits { threads: 2, waiting: 64, timeout: 2 * PATIENCE };
    let searcher = Searcher::new(Arc::clone(&live), limits).unwrap();
    let library = if writable { Library::new(live, CommitOptions::default()) } else { Library::read_only(live) };
    let plan = ServerPlan { searcher: Some(Arc::new(searcher)), library: Some(library), ..ServerPlan::new(says("hi")) };
    (dir, plan.build().await)
}

async fn get(server: &TestServer, path: &str) -> (u16, Value) {
    let response = server.get(path).await;
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn the_index_is_described() {
    let (_dir, server) = server(true, true).await;
    let (status, index) = get(&server, "/v1/index").await;
    assert_eq!(status, 200, "{index}");
    for (name, value) in [
        ("object", json!("index")),
        ("name", json!("shelf")),
        ("names", json!(["default", "shelf"])),
        ("snapshot", json!(1)),
        ("corpus", json!("shelf of art")),
        ("passages", json!(5)),
        ("modes", json!(["passage", "graph", "hybrid", "triples", "kag", "hypergraph"])),
        ("writable", json!(true)),
        ("stale", json!(false)),
    ] {
        assert_eq!(index[name], value, "{name}");
    }
    assert_eq!((&index["graph"]["triples"], &index["graph"]["source"]), (&json!(49), &json!("corpus")));
    assert!(index["embedder"]["dims"].as_u64().unwrap() > 0 && index["bytes"].as_u64().unwrap() > 1000);
    assert!(index["committed"].as_u64().unwrap() > 1_600_000_000);

    let change = json!({"documents": [{"id": "new", "text": "New.", "triples": []}]});
    assert_eq!(server.post("/v1/documents", &change).await.status(), 200);
    let (_, index) = get(&server, "/v1/index").await;
    assert_eq!((&index["snapshot"], &index["passages"]), (&json!(2), &json!(6)));
}

#[tokio::test]
async fn a_read_only_index_without_a_graph_says_so() {
    let (_dir, server) = server(false, false).await;
    let (_, index) = get(&server, "/v1/index").await;
    assert_eq!((&index["graph"], &index["writable"]), (&Value::Null, &json!(false)));
    assert_eq!(index["modes"], json!(["passage"]));
    let (status, refused) = get(&server, "/v1/index/neighbors?passage=mona").await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("not_configured")));
    let (_, found) = get(&server, "/v1/index/nodes?q=mona").await;
    assert_eq!((&found["phrases"], &found["passages"][0]["id"]), (&json!([]), &json!("mona")));
    let (_, passage) = get(&server, "/v1/index/passages/mona").await;
    assert_eq!(passage["triples"], json!({"origin": "none", "total": 0, "offset": 0, "has_more": false, "data": []}));
}

#[tokio::test]
async fn questions_come_from_facts_and_then_from_titles() {
    let (_dir, server) = server(true, true).await;
    let (status, list) = get(&server, "/v1/index/questions?limit=20").await;
    assert_eq!((status, &list["object"], &list["snapshot"]), (200, &json!("list"), &json!(1)), "{list}");
    let first = &list["data"][0];
    assert_eq!((&first["question"], &first["hops"]), (&json!("Where was the painter of Mona Lisa born?"), &json!(2)));
    assert_eq!(
        first["facts"][1],
        json!({"subject": "Leonardo", "relation": "was born in", "object": "Vinci",
               "passage": {"id": "leonardo", "title": "Leonardo"}})
    );
    let hops: Vec<u64> = list["data"].as_array().unwrap().iter().map(|one| one["hops"].as_u64().unwrap()).collect();
    assert!(hops.is_sorted_by(|a, b| a >= b), "{hops:?}");
    assert_eq!(hops.last(), Some(&0));
    let (_, two) = get(&server, "/v1/index/questions?limit=2").await;
    assert_eq!(two["data"], json!(list["data"].as_array().unwrap()[..2]));
    let (_, six) = get(&server, "/v1/index/questions").await;
    assert_eq!(six["data"].as_array().unwrap().len(), 6);
}

#[tokio::test]
async fn nodes_are_found_by_text() {
    let (_dir, server) = server(true, true).await;
    let (status, found) = get(&server, "/v1/index/nodes?q=Mona").await;
    assert_eq!((status, &found["complete"]), (200, &json!(true)), "{found}");
    let phrase = &found["phrases"][0];
    assert_eq!(
        (&phrase["kind"], &phrase["id"], &phrase["match"]),
        (&json!("phrase"), &json!("mona lisa"), &json!("prefix"))
    );
    assert!(phrase["degree"].as_u64().unwrap() >= 4 && phrase.get("preview").is_none());
    let passage = &found["passages"][0];
    assert_eq!(
        (&passage["id"], &passage["label"], &passage["match"]),
        (&json!("mona"), &json!("Mona Lisa"), &json!("text"))
    );
    assert!(passage["preview"].as_str().unwrap().starts_with("Leonardo painted"));

    let (_, named) = get(&server, "/v1/index/nodes?q=town%2Fparis").await;
    assert_eq!((&named["passages"][0]["id"], &named["passages"][0]["match"]), (&json!("town/paris"), &json!("id")));
    let (_, streets) = get(&server, "/v1/index/nodes?q=rue&limit=50").await;
    assert_eq!(streets["phrases"].as_array().unwrap().len(), 45);
    let (_, few) = get(&server, "/v1/index/nodes?q=rue&limit=3").await;
    assert_eq!(few["phrases"], json!(streets["phrases"].as_array().unwrap()[..3]));
}

#[tokio::test]
async fn a_click_on_a_neighbor_leads_on() {
    let (_dir, server) = server(true, true).await;
    let (status, mona) = get(&server, "/v1/index/neighbors?phrase=Mona%20Lisa").await;
    assert_eq!((status, &mona["node"]["id"], &mona["snapshot"]), (200, &json!("mona lisa"), &json!(1)), "{mona}");
    let edges = mona["edges"].as_array().unwrap();
    assert!(edges.is_sorted_by(|a, b| a["weight"].as_f64() >= b["weight"].as_f64()));
    assert_eq!((mona["total"].as_u64().unwrap() as usize, &mona["has_more"]), (edges.len(), &json!(false)));
    let leonardo = edges.iter().find(|edge| edge["node"]["id"] == "leonardo" && edge["node"]["kind"] == "phrase");
    let facts = &leonardo.unwrap()["facts"];
    let told: BTreeSet<&str> =
        facts.as_array().unwrap().iter().map(|fact| fact["relation"].as_str().unwrap()).collect();
    // An edge has the facts of both directions.
    assert_eq!(told, BTreeSet::from(["drew", "was painted by"]));
    assert_eq!(facts[0]["passages"], json!(["leonardo"]));

    // Every neighbor can be opened and leads back over the same edge.
    for edge in edges {
        let kind = edge["node"]["kind"].as_str().unwrap();
        let id = edge["node"]["id"].as_str().unwrap().replace(' ', "%20");
        let (_, opened) = get(&server, &format!("/v1/index/neighbors?{kind}={id}&limit=200")).await;
        assert_eq!(opened["node"], edge["node"]);
        let back = opened["edges"].as_array().unwrap().iter().find(|back| back["node"] == mona["node"]).unwrap();
        assert_eq!((&back["weight"], &back["kinds"]), (&edge["weight"], &edge["kinds"]));
    }

    let (_, paris) = get(&server, "/v1/index/neighbors?phrase=paris&limit=200").await;
    let (_, best) = get(&server, "/v1/index/neighbors?phrase=paris&limit=5").await;
    assert_eq!((&best["edges"], &best["has_more"]), (&json!(paris["edges"].as_array().unwrap()[..5]), &json!(true)));
    assert_eq!(best["total"], paris["total"]);
    let (_, only) = get(&server, "/v1/index/neighbors?phrase=paris&kind=passage").await;
    assert_eq!((&only["total"], &only["edges"][0]["node"]["id"]), (&json!(1), &json!("town/paris")));
    assert_eq!(only["edges"][0]["kinds"], json!(["mention"]));

    for (path, param) in [("phrase=nobody", "phrase"), ("passage=nobody", "passage")] {
        let (status, absent) = get(&server, &format!("/v1/index/neighbors?{path}")).await;
        assert_eq!(
            (status, &absent["error"]["code"], &absent["error"]["param"]),
            (404, &json!("node_not_found"), &json!(param))
        );
    }
}

#[tokio::test]
async fn a_passage_shows_its_triples_page_by_page() {
    let (_dir, server) = server(true, true).await;
    let (status, mona) = get(&server, "/v1/index/passages/mona").await;
    assert_eq!((status, &mona["metadata"], &mona["next"]), (200, &json!({"topic": "art"}), &Value::Null), "{mona}");
    assert_eq!(
        mona["triples"]["data"][0],
        json!({"subject": "Mona Lisa", "relation": "was painted by", "object": "Leonardo",
               "subject_phrase": "mona lisa", "object_phrase": "leonardo"})
    );
    let mut objects = Vec::new();
    loop {
        let (_, page) = get(&server, &format!("/v1/index/passages/town/paris?limit=20&offset={}", objects.len())).await;
        let triples = &page["triples"];
        assert_eq!(
            (&triples["total"], &triples["offset"], &triples["origin"]),
            (&json!(45), &json!(objects.len()), &json!("given"))
        );
        objects.extend(triples["data"].as_array().unwrap().iter().map(|triple| triple["object"].clone()));
        if triples["has_more"] == false {
            break;
        }
    }
    assert_eq!(objects, (0..45).map(|n| json!(format!("Rue {n}"))).collect::<Vec<_>>());
    let (_, beyond) = get(&server, "/v1/index/passages/mona?offset=1000000000").await;
    assert_eq!((&beyond["triples"]["data"], &beyond["triples"]["has_more"]), (&json!([]), &json!(false)));
    let (_, chunk) = get(&server, "/v1/index/passages/book%231").await;
    assert_eq!((&chunk["previous"], &chunk["next"]), (&Value::Null, &json!("book#2")));
    let (status, absent) = get(&server, "/v1/index/passages/nobody").await;
    assert_eq!((status, &absent["error"]["code"]), (404, &json!("document_not_found")));
}

#[tokio::test]
async fn numbers_out_of_range_are_refused_by_name() {
    let (_dir, server) = server(true, true).await;
    let long = "x".repeat(257);
    for (path, param) in [
        ("questions?limit=0", "limit"),
        ("questions?limit=21", "limit"),
        ("questions?most=3", "most"),
        ("nodes", "q"),
        ("nodes?q=+", "q"),
        (&format!("nodes?q={long}"), "q"),
        ("nodes?q=x&limit=51", "limit"),
        ("nodes?q=x&k=1", "k"),
        ("neighbors", "phrase"),
        ("neighbors?phrase=a&passage=b", "passage"),
        ("neighbors?phrase=a&limit=201", "limit"),
        ("neighbors?phrase=a&limit=-1", "limit"),
        ("neighbors?phrase=a&kind=fact", "kind"),
        ("passages/mona?limit=101", "limit"),
        ("passages/mona?offset=-1", "offset"),
        ("passages/mona?offset=1000000001", "offset"),
        ("passages/mona?after=x", "after"),
    ] {
        let (status, refused) = get(&server, &format!("/v1/index/{path}")).await;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{path}: {refused}");
    }
    let bare = TestServer::new(says("hi")).await;
    for path in ["", "/questions", "/nodes?q=x", "/neighbors?phrase=x", "/passages/x"] {
        let (status, refused) = get(&bare, &format!("/v1/index{path}")).await;
        assert_eq!((status, &refused["error"]["code"]), (400, &json!("not_configured")), "{path}");
    }
}

#[tokio::test]
async fn a_response_stays_small_however_long_the_phrases_are() {
    let (_dir, server) = server(true, true).await;
    // 110 neighbors of 16 kB each are 1.8 MB.
    let long = |n: usize| format!("{n} {}", "long ".repeat(3_200));
    let triples: Vec<Value> = (0..110).map(|n| json!(["hub", "has", long(n)])).collect();
    let change = json!({"documents": [{"id": "long", "text": "Long.", "triples": triples}]});
    assert_eq!(server.post("/v1/documents", &change).await.status(), 200);
    for path in ["neighbors?phrase=hub&limit=200&kind=phrase", "nodes?q=long&limit=50", "passages/long?limit=100"] {
        let text = server.get(&format!("/v1/index/{path}")).await.text().await.unwrap();
        assert!(text.len() < 2 << 20, "{path}: {}", text.len());
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["snapshot"], 2, "{path}");
    }
    let (_, hub) = get(&server, "/v1/index/neighbors?phrase=hub&limit=200&kind=phrase").await;
    assert_eq!((&hub["total"], &hub["has_more"]), (&json!(110), &json!(true)));
    let (_, page) = get(&server, "/v1/index/passages/long?limit=100").await;
    assert_eq!(page["triples"]["has_more"], true);
}
