//! Third-party clients, each in its own directory under `target/`, into which it is installed on first use. If that is
//! not possible, the test prints a line and passes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use waymark_engine::mock::Lines;
use waymark_models::chat::ChatTemplate;

use crate::harness::{Letters, ServerPlan, TestServer, script};
use crate::responses::Plays;
use crate::tools::TEMPLATE;

/// Versions to test against.
const PYTHON: &str = "openai==3.57.0";
const NODE: &str = "openai@7.57.0";
const LANGCHAIN: &str = "langchain-openai==1.7.4";
/// Its support for Responses needs this extra.
const LITELLM: &str = "litellm[mcp]==1.110.2";
const AGENTS: &str = "openai-agents==0.24.0";
const MCP: &str = "mcp==2.3.0";
const PROMETHEUS: &str = "prometheus-client==0.26.0";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn succeeds(program: &Path, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// Returns a Python interpreter with `package`, given with its version. Prints a line and returns `None` if there is
/// none.
fn python(folder: &str, package: &str) -> Option<PathBuf> {
    let folder = root().join("target").join(folder);
    let python = folder.join("bin/python");
    let (name, version) = package.split_once("==").unwrap();
    // The metadata of an installed package is found by its name without extras.
    let name = name.split('[').next().unwrap();
    let ask = format!("from importlib.metadata import version; assert version('{name}') == '{version}'");
    let has = |python: &Path| succeeds(python, &["-c", &ask]);
    if !has(&python) {
        // A failure shows in the check that follows.
        succeeds(Path::new("python3"), &["-m", "venv", &folder.to_string_lossy()]);
        succeeds(&python, &["-m", "pip", "install", "--quiet", package]);
    }
    if has(&python) {
        return Some(python);
    }
    println!("skipped: {package} cannot be installed here");
    None
}

/// Returns the file by which the Node SDK is imported. Prints a line and returns `None` without Node or the SDK.
fn node() -> Option<PathBuf> {
    let folder = root().join("target/node-sdk");
    let package = folder.join("node_modules/openai");
    let manifest = package.join("package.json");
    let version = format!("\"version\": \"{}\"", NODE.split_once('@').unwrap().1);
    let has = || std::fs::read_to_string(&manifest).is_ok_and(|manifest| manifest.contains(&version));
    if !succeeds(Path::new("node"), &["--version"]) {
        println!("skipped: there is no node here");
        return None;
    }
    if !has() {
        let prefix = folder.to_string_lossy();
        succeeds(Path::new("npm"), &["install", "--silent", "--no-audit", "--no-fund", "--prefix", &prefix, NODE]);
    }
    if has() {
        return Some(package.join("index.mjs"));
    }
    println!("skipped: {NODE} cannot be installed here");
    None
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
    let install = || python("python-sdk", PYTHON);
    let Some(python) = tokio::task::spawn_blocking(install).await.unwrap() else { return };
    content(python.clone(), "chat.py", Vec::new()).await;
    content(python.clone(), "responses.py", Vec::new()).await;
    content(python, "vector_stores.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_node_sdk_is_content() {
    let Some(package) = tokio::task::spawn_blocking(node).await.unwrap() else { return };
    content("node".into(), "node.mjs", vec![package]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn langchain_is_content() {
    let install = || python("python-langchain", LANGCHAIN);
    let Some(python) = tokio::task::spawn_blocking(install).await.unwrap() else { return };
    content(python, "ask_langchain.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn litellm_is_content() {
    let install = || python("python-litellm", LITELLM);
    let Some(python) = tokio::task::spawn_blocking(install).await.unwrap() else { return };
    content(python, "ask_litellm.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_agents_sdk_is_content() {
    let install = || python("python-agents", AGENTS);
    let Some(python) = tokio::task::spawn_blocking(install).await.unwrap() else { return };
    content(python, "ask_agents.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_parsers_are_content() {
    let install = || python("python-prometheus", PROMETHEUS);
    let Some(python) = tokio::task::spawn_blocking(install).await.unwrap() else { return };
    content(python, "read_metrics.py", Vec::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_mcp_sdk_is_content() {
    let install = || python("python-mcp", MCP);
    let Some(python) = tokio::task::spawn_blocking(install).await.unwrap() else { return };
    content(python, "ask_mcp.py", Vec::new()).await;
}
