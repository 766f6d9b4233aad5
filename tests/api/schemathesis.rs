//! Requests generated from `openapi.yaml`, sent to a server with all features and API keys; see `scripts/conformance`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use waymark::api::PolicyStore;
use waymark::keys::{ApiKeys, KeyEntry, Secret};
use waymark_engine::mock::Lines;

use crate::documents;
use crate::harness::{Letters, ServerPlan, script};
use crate::skipped::skipped;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_finds_an_undocumented_answer() {
    let turns = ["<think>I must look.</think>\n<search>[passage] river</search>", "<answer> Rhine </answer>"];
    let lines = Lines::new(turns).terminator("</information>\n\n");
    let (_index, _, plan) = documents::plan(true);
    let policies = tempfile::tempdir().unwrap();
    let store = PolicyStore::new(policies.path().canonicalize().unwrap());
    let backend = script(&lines);
    let secret = Secret::generate();
    let keys = ApiKeys::open(None, vec![KeyEntry::of_environment(&secret)]).unwrap();
    let embedder = Some(Arc::new(Letters) as _);
    let server = ServerPlan { backend, embedder, store: Some(store), keys, ..plan }.build().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/conformance/schemathesis.sh");
    let url = server.url("");
    let key = secret.reveal().to_owned();
    let run = move || Command::new(script).args([url.as_str(), "10"]).env("WAYMARK_API_KEY", key).output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    if let Some(why) = said.strip_prefix("skipped: ") {
        skipped(why.trim_end());
    }
}
