//! The official `openai` SDK as a client. Needs a Python that has it: `WAYMARK_PYTHON`, or `python3`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use waymark::engine::mock::Lines;

use crate::house::{Letters, Plan, script};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_python_sdk_is_content() {
    let python = std::env::var("WAYMARK_PYTHON").unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).args(["-c", "import openai"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: {python} has no openai package");
        return;
    }
    let turns = ["<think>I must look.</think>\n<search>[passage] Faust</search>", "<answer> Goethe </answer>"];
    let lines = Lines::new(turns).terminator("</information>\n\n");
    let house = Plan { embedder: Some(Arc::new(Letters)), ..Plan::new(script(&lines)) }.build().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/sdk.py");
    let url = house.url("");
    let run = move || Command::new(python).arg(script).arg(url).output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.ends_with("ok\n"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
