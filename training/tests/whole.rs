//! `train grpo` of every weight, from the command line: planned, killed and resumed, and gone on with.
#![allow(clippy::unwrap_used)]

mod small;
mod words;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use words::{done, told};

/// Nothing is ever right: what is learnt is to be less sure.
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

/// A folder with a base model, a recipe, questions and an index.
fn ready() -> tempfile::TempDir {
    let question = |at| format!("{{\"question\": \"w1 w{at} w2\", \"answers\": [\"nobody says this\"]}}\n");
    words::ready(RECIPE, (4..12).map(question))
}

fn train(dir: &Path, out: &str, flags: &[&str]) -> Command {
    words::train("grpo", dir, out, flags)
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("policy/model/model.safetensors")).unwrap()
}

#[test]
fn every_weight_is_learnt_from_rewards_and_gone_on_with() {
    let temp = ready();
    let dir = temp.path();
    let plan = done(train(dir, "first", &["--stage", "1", "--dry-run"]));
    for part in ["learnt ", "GiB for the engine's weights", "that the run began with", "GiB for copies"] {
        assert!(plan.contains(part), "{part} is missing in {plan}");
    }
    assert!(!dir.join("first").exists());
    done(train(dir, "first", &["--stage", "1"]));
    let first = weights(&dir.join("first"));
    assert_ne!(first, fs::read(dir.join("model.safetensors")).unwrap());

    let on = ["--stage", "2", "--init", "first", "--reference", "first"];
    done(train(dir, "second", &on));
    let second = weights(&dir.join("second"));
    assert!(second.len() == first.len() && second != first);
    let policy: toml::Table =
        toml::from_str(&fs::read_to_string(dir.join("second/policy/policy.toml")).unwrap()).unwrap();
    assert_eq!((policy["base"].as_str(), policy["training"]["before"]["kind"].as_str()), (Some("model"), Some("grpo")));
    // The weights that a run began with are part of what it is known by.
    let other = train(dir, "second", &["--stage", "2"]).output().unwrap();
    assert!(!other.status.success() && told(&other).contains("init = "), "{}", told(&other));
    // What comes out is a base model like any other.
    let based = format!("base={:?}", dir.join("first/policy/model").to_str().unwrap());
    done(train(dir, "third", &["--stage", "2", "--set", &based]));
    assert_eq!(weights(&dir.join("third")), second, "the same weights, by another way");
}

#[test]
fn a_card_that_is_not_there_is_planned_for() {
    let temp = ready();
    let flags = ["--device", "cuda", "--memory", "1GiB", "--dry-run"];
    let output = train(temp.path(), "run", &flags).output().unwrap();
    let said = told(&output);
    // As far as this model gets on any card.
    let refused = said.contains("--device cuda:0") && said.contains("no kernel for heads of width 16");
    assert!(!output.status.success() && refused, "{said}");
}

#[test]
fn killed_and_left_alone_end_in_the_same_weights() {
    let temp = ready();
    let dir = temp.path();
    done(train(dir, "whole", &[]));
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
    done(train(dir, "killed", &[]));
    assert_eq!(weights(&dir.join("killed")), weights(&dir.join("whole")));
}

#[test]
fn support_is_known_where_training_goes_by_it() {
    let temp = ready();
    let dir = temp.path();
    let routes = ["--stage", "2", "--set", "grpo.routes={}"];
    let bare = train(dir, "bare", &routes).output().unwrap();
    let told = told(&bare);
    assert!(!bare.status.success() && told.contains("questions: ") && told.contains("give `supporting`"), "{told}");
    assert!(!dir.join("bare").exists());

    let line = |at| format!("{{\"question\": \"w1 w{at} w2\", \"answers\": [\"a\"], \"supporting\": [\"w1\"]}}\n");
    fs::write(dir.join("questions.jsonl"), (4..12).map(line).collect::<String>()).unwrap();
    done(train(dir, "known", &routes));
    let kept = fs::read_to_string(dir.join("known/samples.jsonl")).unwrap();
    // Nobody searched.
    assert!(kept.lines().count() == 8 && kept.lines().all(|line| line.contains("\"support\":0.0")), "{kept}");
}

#[test]
fn what_is_no_policy_of_all_weights_is_not_gone_on_with() {
    let temp = ready();
    let dir = temp.path();
    fs::create_dir(dir.join("adapter")).unwrap();
    fs::write(dir.join("adapter/policy.toml"), "name = \"other\"\nprotocol = \"plain\"\n").unwrap();
    for flag in ["--init", "--reference"] {
        let output = train(dir, "run", &[flag, "adapter"]).output().unwrap();
        let told = told(&output);
        assert!(!output.status.success() && told.contains(flag) && told.contains("learns all weights"), "{told}");
    }
    assert!(!dir.join("run").exists());
}
