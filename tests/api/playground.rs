//! `/`: the page, its content security policy, and its behavior in a real browser, with live and saved runs.

use std::process::{Command, Stdio};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use waymark_agent::{Search, SearchError, SearchQuery};
use waymark_engine::mock::Lines;
use waymark_index::{Evidence, GraphRank, Hit, HitPath, HitRank, Mode, Passage, PathEdge};

use crate::harness::{ServerPlan, TestServer, says, script};
use crate::skipped::skipped;

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
    assert_eq!(header("vary"), "accept, accept-encoding");
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

#[tokio::test]
async fn files_of_the_page_are_sent_once_and_under_its_policy() {
    let server = TestServer::new(says("x")).await;
    let page = server.client.get(server.url("/")).header("accept", BROWSER).send().await.unwrap();
    let page = page.text().await.unwrap();
    for (name, kind) in [("app.js", "text/javascript"), ("app.css", "text/css"), ("icon.svg", "image/svg+xml")] {
        assert!(page.contains(&format!("/page/{name}")), "{name}");
        let path = format!("/page/{name}?v=1");
        let file = server.get(&path).await;
        assert_eq!(file.status(), 200, "{name}");
        let header = |name: &str| file.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-type").starts_with(kind) && header("vary").contains("accept-encoding"));
        assert!(header("content-security-policy").starts_with("default-src 'none'; script-src 'self'"));
        let again = server.client.get(server.url(&path)).header("if-none-match", header("etag")).send().await.unwrap();
        assert_eq!((again.status().as_u16(), again.text().await.unwrap().len()), (304, 0), "{name}");
        let packed = server.client.get(server.url(&path)).header("accept-encoding", "gzip").send().await.unwrap();
        assert_eq!(packed.headers()["content-encoding"], "gzip");
        assert!(packed.bytes().await.unwrap().starts_with(&[0x1f, 0x8b]));
    }
    for unknown in ["/page/x.js", "/page/..%2Fsrc%2Fmain.tsx", "/page/%FF"] {
        let response = server.get(unknown).await;
        assert_eq!(response.status(), 404, "{unknown}");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "not_found", "{unknown}");
    }
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

/// Asks a question in a real browser: all output is shown as text. `page/tests` has the tests of the page itself.
#[tokio::test]
async fn a_browser_shows_the_trace_and_runs_nothing_that_was_found() {
    let program = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let asked = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    });
    let Some(program) = program else {
        return skipped("there is no chromium here to drive");
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
        Err(error) => return skipped(&format!("python3 drives the browser, and cannot be run: {error}")),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        return skipped(said.trim_end());
    }
    assert!(output.status.success(), "{said}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen["title"], "Waymark");
    assert_eq!(seen["foreign"], 0, "something that was found became markup");
    assert_eq!(seen["violations"], json!([]));
    let text = seen["text"].as_str().unwrap();
    for part in [
        "Who <u>wrote</u> it?",
        "Searched for \u{201c}<em>Faust</em> author\u{201d} along the graph",
        "<b>Faust</b>",
        MARKUP,
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(seen["answer"], "Goethe");
    assert_eq!(seen["policies"], json!(["plain", "routerag", "a/b"]));
    let nodes = json!([
        ["query", "<em>Faust</em> author"],
        ["phrase", "<i>goethe</i>"],
        ["passage", "<b>Faust</b>"],
        ["goal", "Goethe"],
    ]);
    assert_eq!((&seen["nodes"], &seen["edges"]), (&nodes, &json!(3)));
}
