//! Tests of `train rollout`: plan, interruption and resumption, with an adapter and with trained weights.
#![allow(clippy::unwrap_used)]

mod entropy_run;
mod tiny_model;
mod word_run;

use std::fs;
use std::path::Path;
use std::process::Command;

use entropy_run::{ADAPTER, RECIPE, ready};
use word_run::{stderr, succeed};

fn roll(dir: &Path, out: &str, flags: &[&str]) -> Command {
    word_run::train("rollout", dir, out, flags)
}

/// Reads the question ID and the tokens of each trajectory.
fn tokens(path: &Path) -> Vec<(String, serde_json::Value)> {
    let text = fs::read_to_string(path).unwrap();
    let read = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        (row["question_id"].as_str().unwrap().to_owned(), row["tokens"].clone())
    };
    text.lines().map(read).collect()
}

#[test]
fn interrupted_rollouts_resume_where_they_stopped() {
    let temp = ready(&format!("{RECIPE}{ADAPTER}"));
    let dir = temp.path();
    let plan = succeed(roll(dir, "own.jsonl", &["--dry-run"]));
    assert!(plan.contains("rollouts   20, of which 0 are in"), "{plan}");
    assert!(!dir.join("own.jsonl").exists());
    let said = succeed(roll(dir, "own.jsonl", &[]));
    assert!(said.contains("20 trajectories of 10 questions"), "{said}");
    let whole = tokens(&dir.join("own.jsonl"));
    let asked: Vec<&str> = whole.iter().map(|(question, _)| question.as_str()).collect();
    let twice: Vec<String> = (3..13).flat_map(|at| [at.to_string(), at.to_string()]).collect();
    assert_eq!(asked, twice);

    // Cut within a line, within a question, and within a concurrent batch.
    let text = fs::read_to_string(dir.join("own.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    fs::copy(dir.join("own.facts.toml"), dir.join("cut.facts.toml")).unwrap();
    fs::write(dir.join("cut.jsonl"), format!("{}\n{}", lines[..11].join("\n"), &lines[11][..90])).unwrap();
    assert!(succeed(roll(dir, "cut.jsonl", &["--dry-run"])).contains("of which 11 are in"));
    succeed(roll(dir, "cut.jsonl", &[]));
    assert_eq!(tokens(&dir.join("cut.jsonl")), whole);

    succeed(roll(dir, "own.jsonl", &[]));
    for flags in [["--set", "seed=4"], ["--set", "grpo.group=3"]] {
        for dry in [&[][..], &["--dry-run"]] {
            let refused = roll(dir, "own.jsonl", &[&flags, dry].concat()).output().unwrap();
            assert!(
                !refused.status.success() && stderr(&refused).contains("was produced with other settings"),
                "{}",
                stderr(&refused)
            );
        }
    }
    assert_eq!(fs::read_to_string(dir.join("own.jsonl")).unwrap(), text);
}

#[test]
fn rollouts_use_the_policy_of_init() {
    for recipe in [RECIPE.to_owned(), format!("{RECIPE}{ADAPTER}")] {
        let temp = ready(&recipe);
        let dir = temp.path();
        succeed(word_run::train("grpo", dir, "run", &[]));
        succeed(roll(dir, "base.jsonl", &[]));
        succeed(roll(dir, "own.jsonl", &["--init", "run"]));
        assert_ne!(tokens(&dir.join("own.jsonl")), tokens(&dir.join("base.jsonl")), "{recipe}");
        let other = roll(dir, "base.jsonl", &["--init", "run"]).output().unwrap();
        assert!(
            !other.status.success() && stderr(&other).contains("was produced with other settings"),
            "{}",
            stderr(&other)
        );
    }
    let temp = ready(RECIPE);
    let dir = temp.path();
    fs::create_dir(dir.join("other")).unwrap();
    fs::write(dir.join("other/policy.toml"), "name = \"other\"\nprotocol = \"routerag\"\n").unwrap();
    let refused = roll(dir, "own.jsonl", &["--init", "other"]).output().unwrap();
    assert!(
        !refused.status.success() && stderr(&refused).contains("--init other: the protocol"),
        "{}",
        stderr(&refused)
    );
    assert!(!dir.join("own.jsonl").exists());
}
