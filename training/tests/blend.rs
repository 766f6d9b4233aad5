//! Tests of `train blend`: interpolation between two adapters, and between all weights of two models.
#![allow(clippy::unwrap_used)]

mod entropy_run;
mod tiny_model;
mod word_run;

use std::fs;
use std::path::Path;
use std::process::Command;

use safetensors::SafeTensors;
use waymark_agent::Policy;

use entropy_run::{ADAPTER, RECIPE, ready};
use word_run::{stderr, succeed};

fn blend(dir: &Path, share: &str, out: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    command.args(["blend", "--threads", "1", "--recipe", "recipe.toml", "--from", "one", "--to", "other"]);
    command.args(["--share", share, "--out", out]).args(more).current_dir(dir);
    command
}

/// Reads all tensors of a file, sorted by name.
fn tensors(path: &Path) -> Vec<(String, Vec<f32>)> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |data: &[u8]| data.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let mut all: Vec<_> = file.iter().map(|(name, view)| (name.to_owned(), read(view.data()))).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

#[test]
fn blended_policies_are_interpolations() {
    for (recipe, file) in
        [(format!("{RECIPE}{ADAPTER}"), "adapter_model.safetensors"), (RECIPE.to_owned(), "model/model.safetensors")]
    {
        let temp = ready(&recipe);
        let dir = temp.path();
        succeed(word_run::train("grpo", dir, "one", &[]));
        succeed(word_run::train("grpo", dir, "other", &["--set", "seed=4", "--init", "one"]));
        assert!(
            succeed(blend(dir, "0.25", "between", &["--dry-run"])).contains("apart") && !dir.join("between").exists()
        );
        for (share, out) in [("0", "first"), ("0.25", "between"), ("1", "last")] {
            assert!(succeed(blend(dir, share, out, &[])).contains(out));
        }
        let [one, other] = ["one", "other"].map(|run| tensors(&dir.join(run).join("policy").join(file)));
        let [first, between, last] = ["first", "between", "last"].map(|out| tensors(&dir.join(out).join(file)));
        assert_ne!(one, other);
        assert!(first == one && last == other, "shares 0 and 1 must reproduce the two policies");
        for (((name, one), (_, other)), (_, between)) in one.iter().zip(&other).zip(&between) {
            for ((one, other), between) in one.iter().zip(other).zip(between) {
                assert!((0.75 * one + 0.25 * other - between).abs() < 1e-6, "{name}: {one} {other} {between}");
            }
        }
        let record = fs::read_to_string(dir.join("between/policy.toml")).unwrap();
        assert!(record.contains("kind = \"blend\"") && record.contains("share = 0.25"), "{record}");
        // Each policy has the fingerprint of its own weights.
        let [one, other, first, between] = ["one/policy", "other/policy", "first", "between"].map(|out| {
            let policy = Policy::open(&dir.join(out)).unwrap();
            policy.fingerprint.unwrap()
        });
        assert_eq!(one.compare(&first.logprobs), Ok(()));
        assert!(one.logprobs != other.logprobs && one.logprobs != between.logprobs, "{one:?} {other:?} {between:?}");
        let again = blend(dir, "0.5", "between", &[]).output().unwrap();
        assert!(!again.status.success() && stderr(&again).contains("between already exists"), "{}", stderr(&again));
    }
}
