//! `/metrics` exposes exactly what `docs/metrics.md` documents, and the dashboard uses nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use waymark_engine::mock::Lines;
use waymark_index::{BuildOptions, Corpus, Document, build};

use crate::documents::{edition, plan};
use crate::harness::{Letters, ServerPlan, TestServer, eventually_found, says, script};
use crate::small_index::HashEmbed;

/// Documented properties of one metric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    meaning: String,
}

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Media type of the OpenMetrics format, as requested by name.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Builds a server on which everything that is counted has happened.
async fn busy_server() -> TestServer {
    let lines = Lines::new(["<think>a</think><search>[passage] b</search>", "<answer> c </answer>"])
        .terminator("</information>\n\n");
    let (_dir, _, ServerPlan { library, .. }) = plan(true);
    let plan = ServerPlan { embedder: Some(Arc::new(Letters)), library, ..ServerPlan::new(script(&lines)) };
    let server: TestServer = plan.build().await;
    let body = json!({"model": "routerag", "messages": [{"role": "user", "content": "hello"}]});
    assert_eq!(server.chat(&body).await.0, 200);
    server
}

/// Returns the metrics in the format that `accept` selects, and their media type.
async fn scrape(server: &TestServer, accept: &str) -> (String, String) {
    let metrics = server.client.get(server.url("/metrics")).header("accept", accept).send().await.unwrap();
    assert_eq!(metrics.headers()["vary"], "accept");
    let media_type = metrics.headers()["content-type"].to_str().unwrap().to_owned();
    (metrics.text().await.unwrap(), media_type)
}

/// Parses the metrics by name; the samples of a histogram have suffixes.
fn shown(text: &str) -> BTreeMap<String, Metric> {
    let field = |prefix: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix)?.split_once(' '));
        lines.map(|(name, rest)| (name.to_owned(), rest.trim_end_matches('.').to_owned())).collect()
    };
    let kinds = field("# TYPE ");
    let helps = field("# HELP ");
    assert_eq!(kinds.len(), helps.len());
    let named = kinds.into_iter().map(|(name, kind)| {
        let sample = match kind.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.clone(),
        };
        let suffix = if kind == "histogram" { "_bucket" } else { "" };
        (
            sample.clone(),
            Metric { labels: labels(text, &format!("{sample}{suffix}")), meaning: helps[&name].clone(), kind },
        )
    });
    named.collect()
}

/// Returns the labels of a metric's samples.
fn labels(text: &str, sample: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(sample)).collect();
    assert!(lines.iter().any(|line| line.starts_with(['{', ' '])), "nothing was counted under {sample}");
    let pairs = lines
        .iter()
        .filter_map(|line| line.strip_prefix('{')?.split_once('}'))
        .flat_map(|(labels, _)| labels.split(','));
    let names = pairs.filter_map(|pair| pair.split_once('=')).map(|(name, _)| name.to_owned());
    names.filter(|name| name != "le").collect()
}

/// Returns the rows of the document's tables: name, kind, unit, labels, meaning.
fn promised() -> BTreeMap<String, Metric> {
    let text = file("docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, labels, meaning] = cells[..] else { panic!("five columns: {row}") };
        let name = name.trim_matches('`');
        assert!(!unit.is_empty(), "{name} has no unit");
        let measure = name.strip_suffix("_total").unwrap_or(name);
        for (suffix, word) in [("_seconds", "seconds"), ("_bytes", "bytes")] {
            assert_eq!(measure.ends_with(suffix), unit == word, "{name} in {unit}");
        }
        let labels = labels.split(',').map(|label| label.trim().trim_matches('`')).filter(|label| !label.is_empty());
        let labels = labels.map(str::to_owned).collect();
        (name.to_owned(), Metric { kind: kind.to_owned(), labels, meaning: meaning.to_owned() })
    })
    .collect()
}

#[tokio::test]
async fn the_document_and_the_code_agree() {
    let promised = promised();
    let (text, media_type) = scrape(&busy_server().await, OPEN_METRICS).await;
    assert_eq!(media_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.ends_with("# EOF\n"));
    let shown = shown(&text);
    for (name, metric) in &shown {
        assert_eq!(promised.get(name), Some(metric), "docs/metrics.md does not promise {name} as it is shown");
    }
    for name in promised.keys() {
        assert!(shown.contains_key(name), "docs/metrics.md promises {name}, and nothing shows it");
    }
}

/// Returns each sample's name and labels, without its value.
fn series(text: &str) -> Vec<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let mut names: Vec<String> = samples.map(|line| line.rsplit_once(' ').unwrap().0.replace(".0\"", "\"")).collect();
    names.sort();
    names
}

#[tokio::test]
async fn both_formats_have_the_same_series() {
    let server = busy_server().await;
    // The scrape itself is a series from the second one on.
    scrape(&server, "*/*").await;
    let (open, _) = scrape(&server, OPEN_METRICS).await;
    let (classic, media_type) = scrape(&server, "text/plain").await;
    assert_eq!(media_type, "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(series(&classic), series(&open));
    assert!(!classic.contains("# EOF") && !classic.contains("\n\n"));
    // In the classic format a family is named as its samples.
    for line in ["# TYPE waymark_http_requests_total counter\n", "# TYPE waymark_build_info gauge\n"] {
        assert!(classic.contains(line), "{line:?} is missing in\n{classic}");
    }
    let unnamed = server.get("/metrics").await;
    assert_eq!(unnamed.headers()["content-type"], media_type);
}

#[tokio::test]
async fn every_query_of_the_dashboard_finds_its_metric() {
    let dashboard: Value = serde_json::from_str(&file("docs/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(queries.len() > 10);
    let shown = shown(&scrape(&busy_server().await, OPEN_METRICS).await.0);
    for query in queries {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> =
            words.filter(|word| word.starts_with("waymark_") || word.starts_with("process_")).collect();
        assert!(!names.is_empty(), "{query}");
        for name in names {
            let whole = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let histogram = whole.and_then(|name| shown.get(name)).filter(|metric| metric.kind == "histogram");
            assert!(shown.contains_key(name) || histogram.is_some(), "{name} in {query}");
        }
    }
}

/// Returns the value of a gauge or counter without labels.
fn gauge(metrics: &str, name: &str) -> u64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

#[tokio::test]
async fn what_is_kept_is_counted_until_it_is_forgotten() {
    let mut plan = ServerPlan::new(says(&"word ".repeat(20)));
    plan.http.resume.grace = Duration::from_secs(6);
    let server = plan.build().await;
    let body = json!({"model": "plain", "input": "hello"});
    let response: Value = server.post("/v1/responses", &body).await.json().await.unwrap();
    let body = json!({"model": "plain", "question": "hello", "stream": true, "resumable": true});
    let streamed = server.post("/v1/agent", &body).await;
    assert_eq!(streamed.status(), 200);
    let streamed = streamed.text().await.unwrap();
    // Read in one snapshot, because the grace period has begun.
    let shown = server.metrics().await;
    for (name, count) in [("traces_kept", 2), ("responses_kept", 1), ("resumable_streams", 1)] {
        assert_eq!(gauge(&shown, &format!("waymark_{name}")), count, "{name}");
        assert!(gauge(&shown, &format!("waymark_{name}_bytes")) > 0, "{name}");
    }
    // All sent events are buffered for a reader that may have lost them.
    assert_eq!(gauge(&shown, "waymark_resumable_streams_bytes"), streamed.len() as u64);
    let list: Value = server.get("/v1/traces").await.json().await.unwrap();
    let traces =
        list["data"].as_array().unwrap().iter().map(|trace| format!("traces/{}", trace["id"].as_str().unwrap()));
    for path in traces.chain([format!("responses/{}", response["id"].as_str().unwrap())]) {
        assert_eq!(server.client.delete(server.url(&format!("/v1/{path}"))).send().await.unwrap().status(), 200);
    }
    eventually_found("the stream is forgotten", async || {
        (gauge(&server.metrics().await, "waymark_resumable_streams") == 0).then_some(())
    })
    .await;
    let shown = server.metrics().await;
    for name in ["traces_kept", "responses_kept", "resumable_streams"] {
        assert_eq!(gauge(&shown, &format!("waymark_{name}")), 0, "{name}");
        assert_eq!(gauge(&shown, &format!("waymark_{name}_bytes")), 0, "{name}");
    }
}

/// Returns the number of the snapshot in use, its passages, and whether a newer one cannot be opened.
async fn index(server: &TestServer) -> [u64; 3] {
    let mut values = [0; 3];
    let shown = server.metrics().await;
    for (value, name) in values.iter_mut().zip(["snapshot", "passages", "stale"]) {
        *value = gauge(&shown, &format!("waymark_index_{name}"));
    }
    values
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_opened_makes_the_index_stale() {
    let (dir, live, plan) = plan(true);
    let server = plan.build().await;
    assert_eq!(index(&server).await, [1, 6, 0]);
    // Another process rebuilds the index.
    let rebuilt = |embed: HashEmbed| {
        let id = "z".to_owned();
        let text = "A river of another edition.".to_owned();
        let document = Document { id, title: String::new(), text, triples: None, metadata: None };
        let corpus = Corpus::from_documents("test", vec![document]);
        build(corpus, &embed, dir.path(), &BuildOptions { replace: true, ..BuildOptions::default() }, &()).unwrap();
    };
    // Built with another embedder, so this server cannot open it.
    rebuilt(HashEmbed { id: "another", dims: 64 });
    live.refresh().unwrap_err();
    assert_eq!(index(&server).await, [1, 6, 1]);
    assert_eq!(server.post("/v1/search", &json!({"query": "river"})).await.status(), 200);
    // A commit cannot continue a snapshot that cannot be opened.
    assert_eq!(server.post("/v1/documents", &edition(&["a"], 2)).await.status(), 500);
    assert_eq!(index(&server).await, [1, 6, 1]);
    rebuilt(HashEmbed::default());
    assert!(live.refresh().unwrap());
    assert_eq!(index(&server).await, [3, 1, 0]);
}

#[tokio::test]
async fn commits_and_their_failures_are_counted() {
    let (dir, _, plan) = plan(true);
    let server = plan.build().await;
    // The second changes nothing, and the third is invalid.
    for (ids, status) in [(vec!["a"], 200), (vec!["a"], 200), (vec!["x", "x"], 400)] {
        assert_eq!(server.post("/v1/documents", &edition(&ids, 2)).await.status(), status, "{ids:?}");
    }
    std::fs::remove_file(dir.path().join("manifest.json")).unwrap();
    assert_eq!(server.post("/v1/documents", &edition(&["b"], 2)).await.status(), 500);
    let shown = server.metrics().await;
    for (name, count) in [("commits_total", 1), ("commit_failures_total", 1), ("commit_seconds_count", 1)] {
        assert_eq!(gauge(&shown, &format!("waymark_index_{name}")), count, "{name}");
    }
}

#[tokio::test]
async fn searches_of_clients_are_counted_apart_from_those_of_policies() {
    let (_dir, _, plan) = plan(true);
    let server = plan.build().await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                      "params": {"name": "search", "arguments": {"query": "river"}}});
    for (path, body) in [
        ("/v1/search", json!({"query": "river"})),
        ("/retrieve", json!({"queries": ["river", "edition1"]})),
        ("/search", json!({"queries": ["river"]})),
        ("/query", json!({"query": ["river"]})),
        ("/mcp", call),
    ] {
        assert_eq!(server.post(path, &body).await.status(), 200, "{path}");
    }
    assert_eq!(server.post("/v1/search", &json!({"query": ""})).await.status(), 400);
    let shown = server.metrics().await;
    // `/retrieve` makes two, and the refused search is none.
    for (name, count) in [
        ("client_searches_total", 6),
        ("client_search_seconds_count", 6),
        ("client_search_failures_total", 0),
        ("searches_total", 0),
    ] {
        assert_eq!(gauge(&shown, &format!("waymark_{name}")), count, "{name}");
    }
}
