//! Tests of `train grpo` without an adapter: plan, kill and resumption, and further training.
#![allow(clippy::unwrap_used)]

mod tiny_model;
mod word_run;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use word_run::{stderr, succeed};

/// Recipe in which no answer is ever correct, so that only KL divergence and entropy have an effect.
const RECIPE: &str = r#"
name = "tiny"
base = "BASE"
seed = 3
[policy]
protocol = "plain"
[policy.budget]
turn_tokens = 6
sampled_tokens = 6
[grpo]
learning_rate = 1e-3
schedule = "constant"
warmup = 0.0
questions = 2
group = 2
mini_batch = 4
micro_batch = 4
pack_tokens = 400
sampling = { temperature = 1.0 }
concurrent = 4
validation = 1
validate_every = 2
save_every = 1
keep_last = 2
[grpo.loss]
kl = 0.1
entropy = 0.1
[[grpo.stages]]
steps = 5
reward = "exact_match"
[[grpo.stages]]
steps = 2
reward = "exact_match"
"#;

/// Creates a directory with a base model, a recipe, questions and an index.
fn ready() -> tempfile::TempDir {
    let question = |at| format!("{{\"question\": \"w1 w{at} w2\", \"answers\": [\"nobody says this\"]}}\n");
    word_run::ready(RECIPE, (4..12).map(question))
}

fn train(dir: &Path, out: &str, flags: &[&str]) -> Command {
    word_run::train("grpo", dir, out, flags)
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("policy/model/model.safetensors")).unwrap()
}

#[test]
fn full_training_changes_all_weights_and_can_continue() {
    let temp = ready();
    let dir = temp.path();
    let plan = succeed(train(dir, "first", &["--stage", "1", "--dry-run"]));
    for part in ["trained ", "GiB for the engine's weights", "GiB for the reference weights", "GiB for copies"] {
        assert!(plan.contains(part), "{part} is missing in {plan}");
    }
    assert!(!dir.join("first").exists());
    succeed(train(dir, "first", &["--stage", "1"]));
    let first = weights(&dir.join("first"));
    assert_ne!(first, fs::read(dir.join("model.safetensors")).unwrap());

    let on = ["--stage", "2", "--init", "first", "--reference", "first"];
    succeed(train(dir, "second", &on));
    let second = weights(&dir.join("second"));
    assert!(second.len() == first.len() && second != first);
    let policy: toml::Table =
        toml::from_str(&fs::read_to_string(dir.join("second/policy/policy.toml")).unwrap()).unwrap();
    assert_eq!(
        (policy["base"].as_str(), policy["training"]["earlier"][0]["kind"].as_str()),
        (Some("model"), Some("grpo"))
    );
    // The initial weights are part of the run's facts.
    let other = train(dir, "second", &["--stage", "2"]).output().unwrap();
    assert!(!other.status.success() && stderr(&other).contains("init = "), "{}", stderr(&other));
    // The trained model can be used as a base model.
    let based = format!("base={:?}", dir.join("first/policy/model").to_str().unwrap());
    succeed(train(dir, "third", &["--stage", "2", "--set", &based]));
    assert_eq!(weights(&dir.join("third")), second, "training from the exported model must give the same weights");
}

#[test]
fn plans_for_an_absent_gpu_check_the_model() {
    let temp = ready();
    let flags = ["--device", "cuda", "--memory", "1GiB", "--dry-run"];
    let output = train(temp.path(), "run", &flags).output().unwrap();
    let said = stderr(&output);
    // This tiny model can be planned for no GPU.
    let refused = said.contains("--device cuda:0") && said.contains("heads of width 16");
    assert!(!output.status.success() && refused, "{said}");
}

#[test]
fn killed_runs_end_with_the_weights_of_uninterrupted_ones() {
    let temp = ready();
    let dir = temp.path();
    succeed(train(dir, "whole", &[]));
    let mut killed = 0;
    for step in [1, 3, 6] {
        let mut running = train(dir, "killed", &[]).spawn().unwrap();
        let reached = |at: u64| dir.join(format!("killed/checkpoints/step-{at:06}.safetensors")).is_file();
        while !(step..=7).any(reached) && running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.kill().unwrap();
        killed += usize::from(!running.wait().unwrap().success());
    }
    assert!(killed > 0, "no run was killed before its end");
    succeed(train(dir, "killed", &[]));
    assert_eq!(weights(&dir.join("killed")), weights(&dir.join("whole")));
}

#[test]
fn rewards_over_support_need_known_support() {
    let temp = ready();
    let dir = temp.path();
    let routes = ["--stage", "2", "--set", "grpo.routes={}"];
    let bare = train(dir, "bare", &routes).output().unwrap();
    let stderr = stderr(&bare);
    assert!(
        !bare.status.success() && stderr.contains("questions: ") && stderr.contains("give `supporting`"),
        "{stderr}"
    );
    assert!(!dir.join("bare").exists());

    let line = |at| format!("{{\"question\": \"w1 w{at} w2\", \"answers\": [\"a\"], \"supporting\": [\"w1\"]}}\n");
    fs::write(dir.join("questions.jsonl"), (4..12).map(line).collect::<String>()).unwrap();
    succeed(train(dir, "known", &routes));
    let kept = fs::read_to_string(dir.join("known/samples.jsonl")).unwrap();
    // The policy made no search.
    assert!(kept.lines().count() == 8 && kept.lines().all(|line| line.contains("\"support\":0.0")), "{kept}");
}

#[test]
fn adapter_policies_are_refused_for_full_training() {
    let temp = ready();
    let dir = temp.path();
    fs::create_dir(dir.join("adapter")).unwrap();
    fs::write(dir.join("adapter/policy.toml"), "name = \"other\"\nprotocol = \"plain\"\n").unwrap();
    for flag in ["--init", "--reference"] {
        let output = train(dir, "run", &[flag, "adapter"]).output().unwrap();
        let stderr = stderr(&output);
        assert!(!output.status.success() && stderr.contains(flag) && stderr.contains("learns all weights"), "{stderr}");
    }
    assert!(!dir.join("run").exists());
}
