//! `bench agent`: the loop over the real server and over a stand-in for `llama-server`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::program::{ProgramRun, waymark, with};

const CORPUS: &str = r#"{"id":"seine","title":"Seine","text":"The Seine is a river that flows through Paris."}
{"id":"louvre","title":"Louvre","text":"The Louvre is a museum in Paris and shows the Mona Lisa."}
"#;

const QUESTIONS: &str = r#"{"question": "Which river flows through Paris?"}
{"question": "Where is the Mona Lisa shown?"}
{"question": "Which city has the Louvre?"}
"#;

/// Runs the bench with the default model, an index without real embeddings, and further `arguments`.
fn bench(arguments: &[&str]) -> ProgramRun {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("corpus.jsonl"), CORPUS).unwrap();
    fs::write(path("questions.jsonl"), QUESTIONS).unwrap();
    let index = path("corpus.index");
    let built = waymark(&["index", "build", "--corpus", &path("corpus.jsonl"), "--embedder", "mock", "--out", &index]);
    assert!(built.ok(), "{}", built.stderr);
    let peer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/llama_server.py");
    let questions = path("questions.jsonl");
    let mut all = vec!["bench", "agent", "--index", &index, "--embedder", "mock", "--questions", &questions];
    all.extend(["--llama-server", peer.to_str().unwrap(), "--kv-bytes", "512MiB", "--turns", "3,2"]);
    all.extend(arguments);
    // The first would send the server's work elsewhere, and the stand-in refuses the second.
    with(&[("WAYMARK_ENGINE", "http://127.0.0.1:9"), ("LLAMA_ARG_PARALLEL", "1")], &all)
}

#[test]
fn the_same_loop_runs_over_both_servers() {
    if super::pulled::policy_if_reachable().is_none() {
        return;
    }
    let run = bench(&["--clients", "2", "--count", "3", "--json"]);
    assert!(run.ok(), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["llama_server_version"], "0 (stand-in)");
    assert_eq!((&report["embedder"], &report["turns"], &report["rounds"]), (&json!("mock"), &json!([3, 2]), &json!(1)));
    assert!(report["model"].as_str().unwrap().ends_with(".gguf") && report["waymark_version"].is_string(), "{report}");
    let row = &report["rows"][0];
    assert_eq!(row["clients"], 2);
    for server in ["waymark", "llama_server"] {
        let row = &row[server];
        assert_eq!((&row["questions"], &row["sampled_tokens"]), (&3.into(), &15.into()), "{server}: {row}");
        // Nothing that a session has computed is computed again, and the instructions are in the caches already.
        assert_eq!(row["prompt_tokens_recomputed"], 0, "{server}: {row}");
        let computed = row["prompt_tokens_computed"].as_u64().unwrap();
        assert!((3 * 50..3 * 300).contains(&computed), "{server}: {row}");
        let [first, answer] = ["first_token_p50", "answer_p50"].map(|field| row[field].as_f64().unwrap());
        assert!(0.0 < first && first < answer, "{server}: {row}");
    }
}

#[test]
fn a_server_that_leaves_the_schedule_ends_the_bench() {
    if super::pulled::policy_if_reachable().is_none() {
        return;
    }
    let run = bench(&["--clients", "1", "--count", "1", "--llama-arg", "--ignore-bans"]);
    assert!(!run.ok() && run.stderr.contains("llama-server sampled the banned token"), "{}", run.stderr);
    let run = bench(&["--clients", "1", "--llama-arg", "--no-such-flag"]);
    assert!(!run.ok() && run.stderr.contains("before it was ready"), "{}", run.stderr);
    let run = bench(&["--kv-bytes", "4GB1"]);
    assert!(!run.ok() && run.stderr.contains("--kv-bytes"), "{}", run.stderr);
    let run = bench(&["--clients", "1,0"]);
    assert!(!run.ok() && run.stderr.contains("--clients must be from 1 to 256"), "{}", run.stderr);
}
