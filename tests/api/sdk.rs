//! The official `openai` SDK as a client, in a virtual environment of the tests' own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use waymark::engine::mock::Lines;

use crate::house::{Letters, Plan, script};

/// The version that is tested against.
const SDK: &str = "openai==3.52.0";

/// A Python that has the SDK: made in `target/` on first use. `None`, said on a line, where it cannot be had.
fn python() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/python-sdk");
    let python = folder.join("bin/python");
    let run = |program: &Path, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    let has = |python: &Path| run(python, &["-c", "import openai; assert openai.__version__ == '3.52.0'"]);
    if !has(&python) {
        run(Path::new("python3"), &["-m", "venv", &folder.to_string_lossy()]);
        run(&python, &["-m", "pip", "install", "--quiet", SDK]);
    }
    if has(&python) {
        return Some(python);
    }
    println!("skipped: {SDK} cannot be installed here");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_python_sdk_is_content() {
    let Some(python) = tokio::task::spawn_blocking(python).await.unwrap() else { return };
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
