//! Tests of killed runs: a resumed run ends with the same bytes as an uninterrupted one.
#![allow(clippy::unwrap_used)]

mod tiny_model;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use tiny_model::model;

const RECIPE: &str = r#"
name = "tiny"
base = "BASE"
seed = 3
policy = { protocol = "routerag" }
[adapter]
rank = 4
alpha = 8.0
targets = ["q_proj", "v_proj", "down_proj"]
seed = 1
[sft]
learning_rate = 1e-2
schedule = "cosine"
warmup = 0.1
epochs = 12
batch = 4
pack_tokens = 200
longest = 100
held_out = 0.2
validate_every = 7
save_every = 3
keep_last = 2
"#;

/// Writes trajectories in which the policy repeats the last token of its prompt.
fn samples(path: &Path) {
    let lines = (0..40u32).map(|at| {
        let tokens: Vec<u32> = (0..20).chain([at, 3, at, 2]).collect();
        json!({
            "id": at.to_string(), "question_id": at.to_string(), "question": "", "golds": [], "supporting": [],
            "dataset": "", "protocol": "routerag", "seed": 0, "step": 0, "tokens": tokens,
            "origins": [["prompt", 22], ["policy", 2]], "prompt_tokens": 22, "text": "", "actions": [], "evidence": [],
            "answer": null, "finish": "stop",
            "usage": {"prompt_tokens": 22, "completion_tokens": 2, "reasoning_tokens": 0, "environment_tokens": 0,
                      "cached_tokens": 0},
            "timings": {"total": 0.0, "first_token": null, "generation": 0.0, "search": 0.0}
        })
        .to_string()
    });
    fs::write(path, lines.map(|line| line + "\n").collect::<String>()).unwrap();
}

/// Creates a directory with the inputs of a run: a base model, trajectories and a recipe.
fn ready() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    model(dir);
    samples(&dir.join("samples.jsonl"));
    fs::write(dir.join("recipe.toml"), RECIPE.replace("BASE", dir.to_str().unwrap())).unwrap();
    temp
}

/// Name of the latest checkpoint of a run, if there is one.
fn latest(run: &Path) -> Option<String> {
    let files = fs::read_dir(run.join("checkpoints")).ok()?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("step-")).max()
}

fn train(dir: &Path, out: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args(["sft", "--threads", "1", "--recipe"]).arg(dir.join("recipe.toml"));
    command.arg("--data").arg(dir.join("samples.jsonl")).arg("--out").arg(dir.join(out));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn killed_runs_end_with_the_bytes_of_uninterrupted_ones() {
    let temp = ready();
    let dir = temp.path();
    let output = train(dir, "whole").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // Each kill comes shortly after a new checkpoint, so that some steps are lost.
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let mut killed = 0;
    for _ in 0..6 {
        let before = latest(&dir.join("killed"));
        let mut running = train(dir, "killed").spawn().unwrap();
        while latest(&dir.join("killed")) == before && running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..40)));
        running.kill().unwrap();
        killed += usize::from(!running.wait().unwrap().success());
    }
    assert!(killed > 0, "no run was killed before its end");
    let left = latest(&dir.join("killed")).unwrap();
    let output = train(dir, "killed").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Shown if a comparison below fails: which steps were lost depends on timing.
    println!("killed {killed} times, last after {left}");

    let adapter = |run: &str| fs::read(dir.join(run).join("policy/adapter_model.safetensors")).unwrap();
    assert_eq!(adapter("whole"), adapter("killed"));
    let rows = |run: &str| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
        let timeless = |line: &str| {
            let mut row: serde_json::Map<_, _> = serde_json::from_str(line).unwrap();
            row.retain(|name, _| !["seconds", "step_seconds", "tokens_per_second"].contains(&name.as_str()));
            row.into()
        };
        text.lines().map(timeless).collect()
    };
    assert_eq!(rows("whole"), rows("killed"));
}

#[test]
fn runs_do_not_resume_with_another_recipe() {
    let temp = ready();
    let dir = temp.path();
    let short = ["--set", "sft.limit=4", "--set", "sft.epochs=1"];
    assert!(train(dir, "run").args(short).status().unwrap().success());
    let output = train(dir, "run").args(short).args(["--set", "sft.batch=2"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("batch = 4") && stderr.contains("batch = 2"), "{stderr}");
    assert!(
        train(dir, "other").args(["--set", "sft.epochs=0"]).output().unwrap().stderr.ends_with(b"must be at least 1\n")
    );
}

#[test]
fn samples_of_another_policy_are_refused_by_line() {
    let temp = ready();
    let dir = temp.path();
    let text = fs::read_to_string(dir.join("samples.jsonl")).unwrap();
    for (from, to, stderr) in [
        (
            "\"protocol\":\"routerag\"",
            "\"protocol\":\"search-r1\"",
            "line 3: the sample uses the protocol \"search-r1\"",
        ),
        ("\"tokens\":[0,", "\"tokens\":[48,", "line 3: token 48 is outside the base model's vocabulary of 48"),
    ] {
        let mut lines: Vec<String> = text.lines().map(|line| line.to_owned() + "\n").collect();
        assert!(lines[2].contains(from), "{}", lines[2]);
        lines[2] = lines[2].replace(from, to);
        fs::write(dir.join("samples.jsonl"), lines.concat()).unwrap();
        let output = train(dir, "run").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(stderr) && error.contains("samples.jsonl"), "{error}");
    }
    assert!(!dir.join("run").exists());
}

#[test]
fn init_policies_of_another_base_model_are_refused() {
    let temp = ready();
    let dir = temp.path();
    let short = ["--set", "sft.limit=4", "--set", "sft.epochs=1"];
    assert!(train(dir, "first").args(short).status().unwrap().success());
    let policy = dir.join("first/policy/policy.toml");
    let text = fs::read_to_string(&policy).unwrap();
    assert_eq!(text.matches("[fingerprint]").count(), 1, "{text}");
    let on = |out: &str| train(dir, out).args(short).arg("--init").arg(dir.join("first")).output().unwrap();
    assert!(on("second").status.success());
    let id = text.lines().find(|line| line.starts_with("base_id = ")).unwrap().to_owned();
    let named = text.replacen(&id, "", 1);
    let base = format!("base = {:?}", dir.to_str().unwrap());
    for (text, from, to, stderr) in [
        (&text, &id, "base_id = \"other\"", "the adapter belongs to the base model with ID other"),
        (&named, &base, "base = \"other\"", "the adapter belongs to the base model other"),
    ] {
        assert!(text.contains(from), "{text}");
        fs::write(&policy, text.replacen(from, to, 1)).unwrap();
        let output = on("third");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("--init") && error.contains(stderr), "{error}");
    }

    // Lessons teach the protocol of the recipe to a policy that speaks another one.
    let other = text.replacen("protocol = \"routerag\"", "protocol = \"search-r1\"", 1);
    assert_ne!(other, text);
    fs::write(&policy, &other).unwrap();
    let output = on("taught");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let taught = fs::read_to_string(dir.join("taught/policy/policy.toml")).unwrap();
    assert!(taught.contains("protocol = \"routerag\""), "{taught}");

    // No other command does.
    let mut blend = Command::new(env!("CARGO_BIN_EXE_train"));
    blend.args(["blend", "--threads", "1", "--share", "0.5", "--recipe"]).arg(dir.join("recipe.toml"));
    blend
        .arg("--from")
        .arg(dir.join("first"))
        .arg("--to")
        .arg(dir.join("second"))
        .arg("--out")
        .arg(dir.join("between"));
    let output = blend.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("the protocol of the policy is search-r1"), "{error}");
}
