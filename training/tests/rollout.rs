//! `train rollout` from the command line: planned, broken off and gone on with, by an adapter and by weights of its own.
#![allow(clippy::unwrap_used)]

mod small;
mod unsure;
mod words;

use std::fs;
use std::path::Path;
use std::process::Command;

use unsure::{ADAPTER, RECIPE, ready};
use words::{done, told};

fn roll(dir: &Path, out: &str, flags: &[&str]) -> Command {
    words::train("rollout", dir, out, flags)
}

/// Question and tokens of each trajectory.
fn tokens(path: &Path) -> Vec<(String, serde_json::Value)> {
    let text = fs::read_to_string(path).unwrap();
    let read = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        (row["question_id"].as_str().unwrap().to_owned(), row["tokens"].clone())
    };
    text.lines().map(read).collect()
}

#[test]
fn what_was_broken_off_goes_on_where_it_was() {
    let temp = ready(&format!("{RECIPE}{ADAPTER}"));
    let dir = temp.path();
    let plan = done(roll(dir, "own.jsonl", &["--dry-run"]));
    assert!(plan.contains("rollouts   20, of which 0 are in"), "{plan}");
    assert!(!dir.join("own.jsonl").exists());
    let said = done(roll(dir, "own.jsonl", &[]));
    assert!(said.contains("20 trajectories of 10 questions"), "{said}");
    let whole = tokens(&dir.join("own.jsonl"));
    let asked: Vec<&str> = whole.iter().map(|(question, _)| question.as_str()).collect();
    let twice: Vec<String> = (3..13).flat_map(|at| [at.to_string(), at.to_string()]).collect();
    assert_eq!(asked, twice);

    // In the middle of a line, of a question, and of what is asked side by side.
    let text = fs::read_to_string(dir.join("own.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    fs::copy(dir.join("own.facts.toml"), dir.join("cut.facts.toml")).unwrap();
    fs::write(dir.join("cut.jsonl"), format!("{}\n{}", lines[..11].join("\n"), &lines[11][..90])).unwrap();
    assert!(done(roll(dir, "cut.jsonl", &["--dry-run"])).contains("of which 11 are in"));
    done(roll(dir, "cut.jsonl", &[]));
    assert_eq!(tokens(&dir.join("cut.jsonl")), whole);

    done(roll(dir, "own.jsonl", &[]));
    for flags in [["--set", "seed=4"], ["--set", "grpo.group=3"]] {
        for dry in [&[][..], &["--dry-run"]] {
            let refused = roll(dir, "own.jsonl", &[&flags, dry].concat()).output().unwrap();
            assert!(!refused.status.success() && told(&refused).contains("was made otherwise"), "{}", told(&refused));
        }
    }
    assert_eq!(fs::read_to_string(dir.join("own.jsonl")).unwrap(), text);
}

#[test]
fn it_is_the_policy_that_was_named_that_answers() {
    for recipe in [RECIPE.to_owned(), format!("{RECIPE}{ADAPTER}")] {
        let temp = ready(&recipe);
        let dir = temp.path();
        done(words::train("grpo", dir, "run", &[]));
        done(roll(dir, "base.jsonl", &[]));
        done(roll(dir, "own.jsonl", &["--init", "run"]));
        assert_ne!(tokens(&dir.join("own.jsonl")), tokens(&dir.join("base.jsonl")), "{recipe}");
        let other = roll(dir, "base.jsonl", &["--init", "run"]).output().unwrap();
        assert!(!other.status.success() && told(&other).contains("was made otherwise"), "{}", told(&other));
    }
    let temp = ready(RECIPE);
    let dir = temp.path();
    fs::create_dir(dir.join("other")).unwrap();
    fs::write(dir.join("other/policy.toml"), "name = \"other\"\nprotocol = \"routerag\"\n").unwrap();
    let refused = roll(dir, "own.jsonl", &["--init", "other"]).output().unwrap();
    assert!(!refused.status.success() && told(&refused).contains("--init other: its protocol"), "{}", told(&refused));
    assert!(!dir.join("own.jsonl").exists());
}
