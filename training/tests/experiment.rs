//! Tests of `train experiment`: a whole experiment over the smallest base model, killed and resumed.
#![allow(clippy::unwrap_used)]

mod tiny_model;
// The experiment starts the trainer itself.
#[allow(dead_code)]
mod word_run;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use word_run::{stderr, succeed};

const RECIPE: &str = r#"
name = "tiny"
base = "BASE"
seed = 3
policy = { protocol = "plain", budget = { turn_tokens = 4, sampled_tokens = 4 } }
[adapter]
rank = 4
alpha = 8.0
targets = ["q_proj", "v_proj", "down_proj"]
seed = 1
[sft]
learning_rate = 1e-2
schedule = "cosine"
warmup = 0.1
epochs = 8
batch = 4
pack_tokens = 200
longest = 100
held_out = 0.2
validate_every = 7
save_every = 3
keep_last = 2
"#;

const DESCRIPTION: &str = r#"
name = "tiny"
claim = "Two stages beat one."
seeds = [1, 2]
[[evaluation]]
name = "words"
questions = "words.jsonl"
index = "index"
[[evaluation]]
name = "others"
questions = "others.jsonl"
index = "index"
[[stage]]
name = "base"
kind = "sft"
recipe = "recipe.toml"
data = ["samples.jsonl"]
seed = 5
[[stage]]
name = "more"
kind = "sft"
recipe = "recipe.toml"
set = ["sft.epochs=6"]
data = ["samples.jsonl"]
init = "base"
[[arm]]
name = "one"
stage = "base"
[[arm]]
name = "two"
stage = "more"
[[endpoint]]
metric = "em"
arm = "two"
against = "one"
at_least = -1.0
[[endpoint]]
metric = "thinking_tokens"
arm = "two"
against = "one"
at_most = -100.0
interval = true
[[endpoint]]
metric = "false_refusals"
arm = "two"
against = "one"
at_least = -1.0
[[endpoint]]
metric = "similarity"
arm = "two"
against = "one"
at_least = -1.0
"#;

/// Writes trajectories in which the policy repeats the last token of its prompt.
fn samples(path: &Path) {
    let lines = (0..40u32).map(|at| {
        let tokens: Vec<u32> = (0..20).chain([at, 3, at, 2]).collect();
        json!({
            "id": at.to_string(), "question_id": at.to_string(), "question": format!("trained {at}"), "golds": [],
            "supporting": [], "dataset": "", "protocol": "plain", "seed": 0, "step": 0, "tokens": tokens,
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

/// Creates a directory with the inputs of the experiment.
fn ready() -> tempfile::TempDir {
    let question =
        |at: usize| format!("{{\"id\": \"{at}\", \"question\": \"w1 w{at}\", \"answers\": [\"w{at} w{at}\"]}}\n");
    let temp = word_run::ready(RECIPE, (3..9).map(question));
    let dir = temp.path();
    fs::rename(dir.join("questions.jsonl"), dir.join("words.jsonl")).unwrap();
    fs::write(dir.join("others.jsonl"), (9..13).map(question).collect::<String>()).unwrap();
    samples(&dir.join("samples.jsonl"));
    fs::write(dir.join("tiny.toml"), DESCRIPTION).unwrap();
    temp
}

fn experiment(dir: &Path, out: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args(["experiment", "tiny.toml", "--threads", "1", "--out", out]).args(flags).current_dir(dir);
    command
}

fn report(dir: &Path, out: &str) -> [String; 3] {
    ["report.json", "report.md", "report.html"].map(|name| fs::read_to_string(dir.join(out).join(name)).unwrap())
}

/// Number of jobs whose results are complete.
fn finished(dir: &Path, out: &str) -> usize {
    let count = |name: &str| {
        let entries = fs::read_dir(dir.join(out).join(name)).into_iter().flatten();
        entries.filter(|entry| !entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')).count()
    };
    count("done") + count("evaluations")
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_experiment_killed_between_all_jobs_ends_in_the_same_report() {
    let temp = ready();
    let dir = temp.path();
    let mut command = experiment(dir, "whole", &["--readme", "README.md"]);
    // The jobs must not see this variable: their mock embedder would refuse it.
    command.env("WAYMARK_QUERY_ARITHMETIC", "int8");
    let said = succeed(command);
    assert!(said.contains("EM of two against one") && said.contains("the claim does not hold"), "{said}");
    let whole = report(dir, "whole");
    let read: Value = serde_json::from_str(&whole[0]).unwrap();
    assert_eq!((&read["holds"], read["endpoints"].as_array().unwrap().len()), (&false.into(), 4));
    assert_eq!(read["endpoints"][0]["passed"], true);
    assert_eq!(read["endpoints"][0]["by_seed"].as_array().unwrap().len(), 2, "one seed each, against one run");
    let undefined = &read["endpoints"][2];
    assert_eq!((&undefined["difference"], &undefined["passed"]), (&Value::Null, &false.into()), "no support is found");
    assert!(said.contains("false refusals of two against one: unknown"), "{said}");
    let similarity = &read["endpoints"][3];
    assert!(similarity["difference"].is_number() && similarity["passed"] == true, "{similarity}");
    assert_eq!(read["arms"][1]["sets"][0]["questions"], 6);
    assert!(whole[1].contains("## words, 6 questions") && whole[1].contains(read["inputs"].as_str().unwrap()));
    assert!(fs::read_to_string(dir.join("README.md")).unwrap().contains(&whole[1]));
    assert_eq!(finished(dir, "whole"), 3 + 3, "a shared stage runs once");

    // The experiment is killed again and again, at different points, until it is done.
    let started = Instant::now();
    let mut kills = 0;
    while !dir.join("killed/report.html").exists() {
        assert!(started.elapsed() < Duration::from_secs(1800), "{kills} kills");
        let mut child = experiment(dir, "killed", &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let before = finished(dir, "killed");
        // Each attempt may finish one job, and is then killed within the next.
        let attempt = Instant::now();
        while finished(dir, "killed") == before && child.try_wait().unwrap().is_none() {
            assert!(attempt.elapsed() < Duration::from_secs(600));
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(20 * kills));
        kill(child);
        kills += 1;
    }
    assert!(kills >= 3, "{kills}");
    assert_eq!(succeed(experiment(dir, "killed", &[])), succeed(experiment(dir, "killed", &[])));
    assert_eq!(report(dir, "killed"), whole);
}

/// Otherwise later jobs would use the new file, and the report would quote the hash of the old one.
#[test]
fn an_input_that_changes_during_a_job_ends_the_experiment() {
    let temp = ready();
    let dir = temp.path();
    // The first job writes its log into the directory of this policy.
    fs::create_dir_all(dir.join("out/logs")).unwrap();
    fs::write(dir.join("out/logs/policy.toml"), "name = \"logs\"\nprotocol = \"plain\"\n").unwrap();
    let arm = "[[arm]]\nname = \"logs\"\npolicy = \"out/logs\"\n";
    fs::write(dir.join("tiny.toml"), format!("{DESCRIPTION}{arm}")).unwrap();
    let output = experiment(dir, "out", &[]).output().unwrap();
    let words = "the policy out/logs differs from what the experiment was started with";
    assert!(!output.status.success() && stderr(&output).contains(words), "{}", stderr(&output));
    assert!(dir.join("out/logs/train-base.log").is_file());
    assert_eq!(finished(dir, "out"), 0, "a job during which an input changed has no result");
}

#[test]
fn what_changed_since_the_start_is_named() {
    let temp = ready();
    let dir = temp.path();
    let plan = succeed(experiment(dir, "out", &["--dry-run"]));
    for part in ["3 trainings, 3 evaluations", "train-base", "memory", "in all     "] {
        assert!(plan.contains(part), "{part:?} is missing in {plan}");
    }
    assert!(!dir.join("out").exists(), "a dry run writes nothing");

    fs::create_dir(dir.join("out")).unwrap();
    let child = experiment(dir, "out", &[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !dir.join("out/inputs.json").exists() {
        assert!(started.elapsed() < Duration::from_secs(300));
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(child);
    let refused_with = |device: Option<&str>, words: &str| {
        let mut command = experiment(dir, "out", &[]);
        if let Some(device) = device {
            command.env("WAYMARK_ROLLOUT_DEVICE", device);
        }
        let output = command.output().unwrap();
        assert!(!output.status.success() && stderr(&output).contains(words), "{}", stderr(&output));
    };
    let refused = |words: &str| refused_with(None, words);
    refused_with(Some("cpu"), "the variable WAYMARK_ROLLOUT_DEVICE differs");
    let questions = fs::read_to_string(dir.join("words.jsonl")).unwrap();
    fs::write(dir.join("words.jsonl"), questions.replace("w3 w3", "w4 w4")).unwrap();
    refused("words.jsonl differs from what the experiment was started with");
    fs::write(dir.join("words.jsonl"), format!("{questions}{}", r#"{"question": "Trained 7?", "answers": ["x"]}"#))
        .unwrap();
    refused("stage[0].data[0]: the question \"trained 7\" is in the evaluation set words too");
    fs::write(dir.join("words.jsonl"), questions).unwrap();
    fs::write(dir.join("tiny.toml"), DESCRIPTION.replace("at_least = -1.0", "at_least = -2.0")).unwrap();
    refused("the description differs");
    fs::write(dir.join("tiny.toml"), DESCRIPTION.replace("at_least = -1.0", "at_last = -1.0")).unwrap();
    refused("tiny.toml: endpoint[0].at_last: unknown field");
    fs::write(dir.join("tiny.toml"), DESCRIPTION.replace("false_refusals", "support_f1")).unwrap();
    refused("tiny.toml: endpoint[2].metric: SF-F1 is undefined on the set words");
    fs::write(dir.join("tiny.toml"), DESCRIPTION.replace("sft.epochs=6", "sft.epoch=6")).unwrap();
    refused("tiny.toml: stage[1].recipe: recipe.toml: sft.epoch: unknown field");
}
