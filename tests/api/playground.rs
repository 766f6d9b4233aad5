//! `/`: the page, its content security policy, and its behavior in a real browser, with live and saved runs.

use std::process::{Command, Stdio};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_engine::mock::Lines;
use waymark_index::{Evidence, GraphRank, Hit, HitPath, HitRank, Mode, Passage, PathEdge};

use crate::harness::{ServerPlan, TestServer, says, script};

/// `accept` header of browsers.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

#[tokio::test]
async fn the_page_comes_with_a_policy_that_allows_nothing_from_outside() {
    let server = TestServer::new(says("x")).await;
    let response = server.client.get(server.url("/")).header("accept", BROWSER).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("referrer-policy"), "no-referrer");
    assert_eq!(header("vary"), "accept");
    let policy = header("content-security-policy");
    for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    let page = response.text().await.unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    // Other clients get plain text.
    assert!(server.get("/").await.text().await.unwrap().starts_with("Waymark"));
}

/// Searcher whose passage contains markup.
#[derive(Debug)]
struct Hostile;

const MARKUP: &str =
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> Goethe wrote it.";

impl Search for Hostile {
    fn search(&self, _: SearchQuery) -> BoxFuture<'_, Result<Evidence, SearchError>> {
        let passage = Passage { id: "p1".into(), title: "<b>Faust</b>".into(), text: MARKUP.into() };
        let via = vec![PathEdge { phrase: "<i>goethe</i>".into(), weight: 1.0 }];
        let graph = Some(GraphRank { rank: 1, mass: 0.25, reset: 0.5, via });
        let path = HitPath { bm25: Some(HitRank { rank: 2, score: 1.5 }), graph, ..HitPath::default() };
        let hit = Hit { rank: 1, score: 0.25, passage, metadata: None, path };
        Box::pin(async move { Ok(Evidence::of(3, Mode::Graph, vec![hit])) })
    }

    fn modes(&self) -> Vec<Mode> {
        vec![Mode::Passage, Mode::Graph]
    }
}

/// Asks a question in a real browser: all output is shown as text, and again in the saved run.
#[tokio::test]
async fn a_browser_shows_the_trace_and_runs_nothing_that_was_found() {
    let program = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let asked = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    });
    let Some(program) = program else {
        eprintln!("skipped: there is no chromium here to drive");
        return;
    };
    let lines = Lines::new([
        "<think>Who <u>wrote</u> it?</think>\n<search> [graph] <em>Faust</em> author </search>",
        "<think>Goethe.</think><answer> Goethe </answer>",
    ]);
    let mut plan = ServerPlan::new(script(&lines.terminator("</information>\n\n")));
    plan.searcher = Some(Arc::new(Hostile));
    let server = plan.build().await;
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/api/playground.py");
    let mut command = Command::new("python3");
    command.args([driver, program, &server.url("/")]);
    let output = match tokio::task::spawn_blocking(move || command.output()).await.unwrap() {
        Ok(output) => output,
        Err(error) => return eprintln!("skipped: python3 drives the browser, and cannot be run: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        eprintln!("skipped: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen["title"], "Waymark");
    assert_eq!(seen["foreign"], 0, "something that was found became markup");
    assert_eq!(seen["violations"], json!([]));
    let text = seen["text"].as_str().unwrap();
    for part in [
        "Who <u>wrote</u> it?",
        "<em>Faust</em> author",
        "<b>Faust</b>",
        MARKUP,
        "bm25 #2 (1.5)",
        "graph #1 (0.25): <i>goethe</i> \u{2192} this passage",
        "Its words stand in",
        "ended by stop: 2 turns, 1 searches",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(seen["answer"], "Goethe");
    assert_eq!(seen["policies"], json!(["plain", "routerag", "a/b"]));
    assert_eq!(seen["refused"], true, "a k that is too large is not told");
    has_a_graph(&seen);
    is_there_again(&seen);
}

/// Checks the graph of the search, and its links to the list.
fn has_a_graph(seen: &Value) {
    let place =
        "<b>Faust</b> \u{b7} 0.25 \u{b7} bm25 #2 (1.5) \u{b7} graph #1 (0.25): <i>goethe</i> \u{2192} this passage";
    let graph = json!({
        "title": "search 1 [graph, 2]: <em>Faust</em> author \u{b7} 1 passage",
        "nodes": [
            ["query", "<em>Faust</em> author"],
            ["phrase", "<i>goethe</i> \u{b7} leads to 1 passage"],
            ["passage", place],
        ],
        "edges": 2,
        "cited": 1,
        "drawn": true,
    });
    assert_eq!(seen["graphs"], json!([graph]));
    let reached = json!({ "focused": true, "open": true, "then": "<b>Faust</b>" });
    assert_eq!(seen["reached"], reached, "a passage of the graph is opened in the list");
}

/// Checks the saved run, opened without a server from the file and from a response with its events; and a damaged file.
fn is_there_again(seen: &Value) {
    for again in seen["again"].as_array().unwrap() {
        for part in ["title", "text", "answer", "graphs", "foreign"] {
            assert_eq!(again[part], seen[part], "{part} of the run that was saved");
        }
    }
    let damaged = seen["damaged"]["text"].as_str().unwrap();
    assert!(damaged.contains("failedline 2: ") && seen["damaged"]["foreign"] == 0, "{damaged}");
}
