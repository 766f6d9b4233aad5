//! Third-party clients, installed by the script `install` on first use. If that is not possible, the test prints a line
//! and passes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use waymark_engine::mock::Lines;
use waymark_models::chat::ChatTemplate;

use crate::harness::{Letters, ServerPlan, TestServer, script};
use crate::responses::Plays;
use crate::skipped::skipped;
use crate::tools::TEMPLATE;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Installs a client of the script `install` and returns its directory. Prints a line and returns `None` if that is
/// impossible.
fn installed(folder: &str) -> Option<PathBuf> {
    let output = Command::new(root().join("tests/api/sdk/install")).arg(folder).output().unwrap();
    if output.status.success() {
        return Some(root().join("target").join(folder));
    }
    skipped(String::from_utf8_lossy(&output.stdout).trim_end());
    None
}

/// Returns the Python interpreter of an installed client.
async fn python(folder: &'static str) -> Option<PathBuf> {
    let folder = tokio::task::spawn_blocking(|| installed(folder)).await.unwrap();
    folder.map(|folder| folder.join("bin/python"))
}

/// Returns a call of a client's tool with these members as its arguments.
fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{{arguments}}}}}\n</tool_call>")
}

/// Mock that searches once for one question, twice for another, calls the client's tools, and gives a long
/// answer on request. Clients may create vector stores.
async fn test_server() -> (tempfile::TempDir, TestServer) {
    let turns = ["<think>I must look.</think>\n<search>[passage] Faust</search>", "<answer> Goethe </answer>"];
    let two = [
        "<think>First Faust.</think>\n<search>[passage] Faust</search>",
        "<think>Then Tell.</think>\n<search>[passage] Tell</search>",
        "<think>Done.</think>\n<answer> Goethe wrote Faust. Schiller wrote Tell. </answer>",
    ];
    let lines = Lines::new(turns)
        .rule("slow<|im_end|>", ["word ".repeat(2000)])
        .rule("Who wrote Faust and Tell?", two)
        .rule("21 degrees", ["It is warm."])
        .rule("\"assistant\": \"forecaster\"", ["Sunny all week."])
        .rule("Ask the forecaster", [call("transfer_to_forecaster", "")])
        .rule("in Rome", [call("look", "\"city\": \"Rome\"")])
        .rule("weather", [call("look", "\"city\": \"Bonn\"")])
        .terminator("</information>\n\n");
    let searcher = Some(Arc::new(Plays::default()) as Arc<dyn waymark_agent::Search>);
    let template = ChatTemplate::new(TEMPLATE, "", "<|im_end|>").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let vector_stores = Some(folder.path().to_owned());
    let embedder = Some(Arc::new(Letters) as _);
    let plan = ServerPlan { searcher, embedder, template, vector_stores, ..ServerPlan::new(script(&lines)) };
    (folder, plan.build().await)
}

/// Runs a script against a test server; its output must end with `ok`.
async fn content(program: PathBuf, script: &'static str, extra: Vec<PathBuf>) {
    let (_folder, server) = test_server().await;
    let url = server.url("");
    let run = move || {
        let script = root().join("tests/api/sdk").join(script);
        Command::new(program).arg(script).arg(url).args(extra).output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.ends_with("ok\n"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    server.quiet().await;
}

/// Runs all scripts of the Python SDK one after the other, because they share its directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_python_sdk_is_content() {
    let Some(python) = python("python-sdk").await else { return };
    content(python.clone(), "chat.py", Vec::new()).await;
    content(python.clone(), "responses.py", Vec::new()).await;
    content(python, "vector_stores.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_node_sdk_is_content() {
    let Some(folder) = tokio::task::spawn_blocking(|| installed("node-sdk")).await.unwrap() else { return };
    content("node".into(), "node.mjs", vec![folder.join("node_modules/openai/index.mjs")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn langchain_is_content() {
    let Some(python) = python("python-langchain").await else { return };
    content(python, "ask_langchain.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn litellm_is_content() {
    let Some(python) = python("python-litellm").await else { return };
    content(python, "ask_litellm.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_agents_sdk_is_content() {
    let Some(python) = python("python-agents").await else { return };
    content(python, "ask_agents.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_parsers_are_content() {
    let Some(python) = python("python-prometheus").await else { return };
    content(python, "read_metrics.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_mcp_sdk_is_content() {
    let Some(python) = python("python-mcp").await else { return };
    content(python, "ask_mcp.py", Vec::new()).await;
}
