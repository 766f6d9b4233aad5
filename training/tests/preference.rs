//! Tests of `train dpo`: plan, kill and resumption, display of samples, and further training.
#![allow(clippy::unwrap_used)]

mod tiny_model;
mod word_run;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use word_run::{stderr, succeed};

/// Recipe whose answers are one random word. Some questions accept it, which earns a small reward in stage 2 of
/// EVO-RAG and so makes pairs.
const RECIPE: &str = r#"
name = "tiny"
base = "BASE"
seed = 3
[policy]
protocol = "plain"
[policy.budget]
turn_tokens = 1
sampled_tokens = 1
[adapter]
rank = 4
alpha = 8.0
targets = ["q_proj", "v_proj"]
seed = 1
[dpo]
learning_rate = 1e-2
schedule = "linear"
warmup = 0.0
questions = 3
group = 6
batch = 2
pack_tokens = 400
beta = 0.1
reference = "round"
sampling = { temperature = 1.0 }
concurrent = 4
validation = 1
save_every = 1
keep_last = 2
[[dpo.stages]]
rounds = 2
epochs = 2
nll = 0.1
reward = { evo_rag = { stage = "second" } }
pairs = { siblings = { margin = 0.001 } }
[[dpo.stages]]
rounds = 1
epochs = 1
begins = "best"
reward = { evo_rag = { stage = "second" } }
pairs = { siblings = { margin = 0.001 } }
"#;

/// Creates a directory with a base model, a recipe, questions and an index.
fn ready() -> tempfile::TempDir {
    // Many golds, so that even an untrained model answers some questions correctly and pairs arise.
    let golds = (10..30).map(|at| format!("\"w{at}\"")).collect::<Vec<_>>().join(", ");
    let question =
        |at| format!("{{\"question\": \"w1 w{at} w2\", \"answers\": [{golds}], \"supporting\": [\"w1\", \"w2\"]}}\n");
    word_run::ready(RECIPE, (3..10).map(question))
}

fn train(dir: &Path, out: &str, flags: &[&str]) -> Command {
    word_run::train("dpo", dir, out, flags)
}

fn adapter(run: &Path) -> Vec<u8> {
    fs::read(run.join("policy/adapter_model.safetensors")).unwrap()
}

fn rows(run: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let timeless = |line: &str| {
        let mut row: serde_json::Map<_, _> = serde_json::from_str(line).unwrap();
        row.retain(|name, _| !name.ends_with("seconds") && !name.ends_with("per_second"));
        row.into()
    };
    text.lines().map(timeless).collect()
}

#[test]
fn preference_runs_are_planned_trained_shown_and_continued() {
    let temp = ready();
    let dir = temp.path();
    let plan = succeed(train(dir, "run", &["--dry-run"]));
    for part in ["dpo1: 2 rounds of 2 epochs, EvoRag", "margin: 0.001", "18 rollouts", "2 of them per optimizer step"] {
        assert!(plan.contains(part), "{part} is missing in {plan}");
    }
    assert!(!dir.join("run").exists());

    succeed(train(dir, "run", &[]));
    let rows = rows(&dir.join("run"));
    let begun: Vec<_> = rows.iter().filter(|row| row.get("pairs").is_some()).collect();
    assert_eq!(begun.len(), 3, "{rows:?}");
    assert!(begun.iter().all(|row| row["pairs"].as_f64() > Some(0.0)), "{begun:?}");
    assert!(rows.iter().filter(|row| row.get("margin").is_some()).count() >= 5, "{rows:?}");
    let report = fs::read_to_string(dir.join("run/report.html")).unwrap();
    assert!(report.contains("Preference loss") && report.contains("Order of pairs"));
    let policy: toml::Table = toml::from_str(&fs::read_to_string(dir.join("run/policy/policy.toml")).unwrap()).unwrap();
    assert_eq!(policy["training"]["kind"].as_str(), Some("dpo"));
    assert!(policy["fingerprint"]["ids"].is_array());

    let mut show = Command::new(env!("CARGO_BIN_EXE_train"));
    show.args(["show", "run/samples.jsonl", "--step", "1", "--n", "18", "--model", "."]).current_dir(dir);
    let shown = succeed(show);
    assert!(shown.contains("preferred to step-1-"), "{shown}");

    succeed(train(dir, "on", &["--init", "run"]));
    assert_ne!(adapter(&dir.join("on")), adapter(&dir.join("run")));
    // A run cannot be resumed with another initial policy.
    let other = train(dir, "on", &[]).output().unwrap();
    assert!(!other.status.success() && stderr(&other).contains("init = "), "{}", stderr(&other));
}

#[test]
fn branches_of_one_trajectory_make_pairs() {
    let temp = ready();
    let dir = temp.path();
    let set = ["--set", "dpo.group=1", "--set", "dpo.branches={width=6}"];
    let plan = succeed(train(dir, "run", &[&set[..], &["--dry-run"]].concat()));
    assert!(plan.contains("18 rollouts"), "{plan}");
    succeed(train(dir, "run", &set));
    let rows = rows(&dir.join("run"));
    let begun: Vec<_> = rows.iter().filter(|row| row.get("branches").is_some()).collect();
    assert!(begun.len() == 3 && begun.iter().all(|row| row["branches"].as_f64() == Some(15.0)), "{rows:?}");
    assert!(begun.iter().any(|row| row["pairs"].as_f64() > Some(0.0)), "{rows:?}");
    let samples = fs::read_to_string(dir.join("run/samples.jsonl")).unwrap();
    let of = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["branch"]["of"].clone();
    assert_eq!(samples.lines().filter(|line| of(line) == "step-1-0-0").count(), 5);
    let mut show = Command::new(env!("CARGO_BIN_EXE_train"));
    show.args(["show", "run/samples.jsonl", "--id", "step-1-0-0-1-1", "--model", "."]).current_dir(dir);
    assert!(succeed(show).contains("of step-1-0-0 from turn 1 on"));
}

#[test]
fn rankers_are_planned_trained_and_saved() {
    let temp = ready();
    let dir = temp.path();
    let ranker = "dpo.ranker={margin=0.001,held_out=0.34,labels=\"own\",learning_rate=0.01}";
    let plan = succeed(train(dir, "run", &["--dry-run", "--set", ranker]));
    assert!(plan.contains("for the states of its branches") && plan.contains("ranker     about"), "{plan}");
    succeed(train(dir, "run", &["--set", ranker]));
    let rows = rows(&dir.join("run"));
    let begun: Vec<_> = rows.iter().filter(|row| row.get("ranker_pairs").is_some()).collect();
    assert!(begun.len() == 3 && begun.iter().all(|row| row.get("ranker_held_out").is_some()), "{rows:?}");
    let bytes = fs::read(dir.join("run/ranker.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // Read by hand, not by the code that wrote it.
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert_eq!(header["heads"]["shape"][0], 7);
    assert!(header["__metadata__"]["base_id"].is_string(), "{header}");
    let report = fs::read_to_string(dir.join("run/report.html")).unwrap();
    assert!(report.contains("Pairs of the ranker"));
    let mut show = Command::new(env!("CARGO_BIN_EXE_train"));
    show.args(["show", "run/samples.jsonl", "--step", "1", "--n", "18", "--model", "."]).current_dir(dir);
    assert!(succeed(show).contains(", by the ranker "));
    let other = train(dir, "run", &[]).output().unwrap();
    assert!(!other.status.success() && stderr(&other).contains("ranker"), "{}", stderr(&other));
}

#[test]
fn plans_count_single_hop_questions() {
    let temp = ready();
    let dir = temp.path();
    let stages = "dpo.stages=[{rounds=1,epochs=1,reward={tearag={}},pairs={tearag={}}}]";
    let plan = || succeed(train(dir, "run", &["--dry-run", "--set", stages]));
    let known = plan();
    assert!(known.contains("6 multi-hop; 0 single-hop or of unknown support"), "{known}");
    assert!(known.contains("GiB for the trajectories of a round"), "{known}");
    // One of the two supporting passages is in no index.
    let text = fs::read_to_string(dir.join("questions.jsonl")).unwrap().replace("\"w2\"]", "\"elsewhere\"]");
    fs::write(dir.join("questions.jsonl"), text).unwrap();
    let lost = plan();
    assert!(lost.contains("0 multi-hop; 6 single-hop or of unknown support"), "{lost}");
}

#[test]
fn killed_runs_end_with_the_bytes_of_uninterrupted_ones() {
    let temp = ready();
    let dir = temp.path();
    succeed(train(dir, "whole", &[]));
    let mut killed = 0;
    for step in [1, 3, 6] {
        let mut running = train(dir, "killed", &[]).spawn().unwrap();
        let reached = |at: u64| dir.join(format!("killed/checkpoints/step-{at:06}.safetensors")).is_file();
        // Any later checkpoint counts too: old ones are deleted, maybe between two polls.
        while !(step..=40).any(reached) && running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.kill().unwrap();
        killed += usize::from(!running.wait().unwrap().success());
    }
    assert!(killed > 0, "no run was killed before its end");
    succeed(train(dir, "killed", &[]));
    assert_eq!(adapter(&dir.join("killed")), adapter(&dir.join("whole")));
    assert_eq!(rows(&dir.join("killed")), rows(&dir.join("whole")));
}

#[test]
fn invalid_recipes_are_refused_with_file_field_and_fix() {
    let temp = ready();
    let dir = temp.path();
    for (set, parts) in [
        ("dpo.beta=0.0", ["recipe.toml: dpo.beta", "above 0"]),
        ("dpo.betta=0.1", ["recipe.toml: dpo", "unknown field `betta`"]),
        ("dpo.sampling={temperature=0.0}", ["recipe.toml: dpo.sampling", "temperature above 0"]),
        ("dpo.validation=0", ["recipe.toml: dpo.stages.begins", "dpo.validation above 0"]),
        ("dpo.validation=3", ["dpo.validation = 3", "at most 1"]),
        ("dpo.group=1", ["recipe.toml: dpo.group", "dpo.branches.width is above 1"]),
        ("dpo.branches={width=0}", ["recipe.toml: dpo.branches.width", "at least 1"]),
        ("dpo.reference=old", ["recipe.toml: dpo.reference", "unknown variant `old`"]),
    ] {
        let output = train(dir, "run", &["--set", set]).output().unwrap();
        let stderr = stderr(&output);
        assert!(!output.status.success() && parts.iter().all(|part| stderr.contains(part)), "{set}: {stderr}");
    }
    let stage = |text: &str| format!("dpo.stages=[{{rounds=1,epochs=1,{text}}}]");
    for (text, part) in [
        ("reward=\"exact_match\",pairs={tearag={}}", "compares components of the reward tearag"),
        ("reward={tearag={}},pairs={tearag={wrong=0.9}}", "chosen and rejected"),
        ("reward=\"exact_match\",pairs={siblings={margin=-1.0}}", "chosen and rejected"),
        ("reward=\"exact_match\",pairs={siblings={}}", "missing field `margin`"),
        ("reward=\"exact_match\",pairs={cousins={}}", "unknown variant `cousins`"),
    ] {
        let output = train(dir, "run", &["--set", &stage(text)]).output().unwrap();
        assert!(!output.status.success() && stderr(&output).contains(part), "{text}: {}", stderr(&output));
    }
    let text = fs::read_to_string(dir.join("recipe.toml")).unwrap();
    fs::write(dir.join("recipe.toml"), &text[..text.find("[dpo]").unwrap()]).unwrap();
    let output = train(dir, "run", &[]).output().unwrap();
    assert!(stderr(&output).contains("this recipe has no section [dpo]"), "{}", stderr(&output));
    assert!(!dir.join("run").exists());
}
