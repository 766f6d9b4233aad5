//! The GPU benchmark on a machine without a GPU: missing devices, the loads on the mock, and judging earlier reports.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

#[path = "../../tests/skipped/mod.rs"]
mod skipped;

use skipped::skipped;

/// Output of one run of the program.
struct Run {
    stdout: String,
    stderr: String,
    success: bool,
}

impl Run {
    fn ok(&self) -> bool {
        self.success
    }
}

fn bench_gpu(args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-gpu"));
    let output = command.args(args).env("NO_COLOR", "1").stdin(Stdio::null()).output().unwrap();
    Run {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        success: output.status.success(),
    }
}

/// A device number that no machine of ours has.
const NOWHERE: &str = "cuda:99";

#[test]
fn a_card_that_is_not_there_is_an_error_that_says_what_to_do() {
    let run = bench_gpu(&["--device", NOWHERE]);
    assert!(!run.ok());
    let said = &run.stderr;
    let helps = said.contains("--features cuda") || said.contains("no CUDA device can be used");
    assert!(helps && !said.contains("panicked"), "{said}");
    let run = bench_gpu(&["--device", "gpu"]);
    assert!(run.stderr.contains("expected cpu, cuda, cuda:N or auto"), "{}", run.stderr);
}

#[test]
fn help_teaches() {
    let help = bench_gpu(&["--help"]).stdout;
    // The help text is wrapped.
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Last come the goals") && words.contains("Examples:"), "{help}");
}

#[test]
fn the_loads_of_the_card_bench_run_on_the_mock() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("gpu.json");
    let sizes = "--sequences 1,4 --prompt 20 --tokens 8 --prompts 2 --prompt-tokens 40 --rounds 1 --loops 4 --turns 3 \
                 --observed 32 --written 8 --search-ms 1 --shapes tiny --mock";
    let mut line = vec!["--json", json.to_str().unwrap()];
    line.extend(sizes.split_whitespace());
    let run = bench_gpu(&line);
    assert!(run.ok(), "{}", run.stderr);
    assert!(
        run.stdout.contains("agentic load") && run.stdout.contains("no --index, so every search is a wait"),
        "{}",
        run.stdout
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["decode"].as_array().unwrap().len(), 2);
    assert!(report["prefill"][0]["tokens_per_second"].as_f64().unwrap() > 0.0);
    let number = |way: usize, what: &str| report["agentic"][way][what].as_u64().unwrap();
    // A prompt of 20 and two observations of 32, each with the token written before it.
    assert_eq!((number(0, "computed"), number(0, "recomputed")), (4 * (20 + 2 * 33), 0));
    // Whole blocks of the turn before are found again; what is left of the last one is not.
    assert!(number(1, "recomputed") < number(2, "recomputed") && number(1, "cached") > 0);
    // Nothing is found: each turn computes everything so far. 20, 20 + 8 + 32, 20 + 2 × 40.
    assert_eq!((number(2, "computed"), number(2, "cached")), (4 * (20 + 60 + 100), 0));
    // The goals are for GPUs, except for the one that every backend must meet.
    let judged = |goal: &&Value| goal["verdict"] != "not_measured";
    let goals = report["goals"].as_array().unwrap();
    let met: Vec<&Value> = goals.iter().filter(judged).map(|goal| &goal["what"]).collect();
    assert_eq!(met, ["agentic load, parked, tokens computed again"], "{goals:?}");
    let last = run.stdout.lines().last().unwrap();
    assert!(last.contains("of the peer") && last.ends_with("not measured"), "{last}");
}

#[test]
fn a_part_of_the_card_bench_that_fails_is_told_and_the_others_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("gpu.json");
    // Prompts that are longer than the mock's context.
    let sizes = "--sequences 1 --prompt 20 --tokens 8 --prompts 1 --prompt-tokens 40000 --rounds 1 --loops 2 --turns 2 \
                 --observed 16 --written 8 --search-ms 1 --shapes tiny --mock";
    let mut line = vec!["--json", json.to_str().unwrap()];
    line.extend(sizes.split_whitespace());
    let run = bench_gpu(&line);
    assert!(!run.ok() && run.stderr.contains("FAILED: prefill, tiny: "), "{}", run.stderr);
    assert!(run.stdout.contains("note: FAILED: prefill, tiny: "), "{}", run.stdout);
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let count = |part: &str| report[part].as_array().map_or(0, Vec::len);
    assert_eq!((count("decode"), count("prefill"), count("agentic")), (1, 0, 3), "{report}");
}

#[test]
fn what_the_card_bench_cannot_read_or_write_is_told_before_anything_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [json, index, questions] = ["gpu.json", "index", "missing.jsonl"].map(&place);
    let searched = ["--index", &index, "--questions", &questions];
    let run = bench_gpu(&[&["--mock", "--json", &json][..], &searched].concat());
    assert!(!run.ok() && run.stderr.contains("missing.jsonl") && run.stdout.is_empty(), "{}", run.stderr);
    assert!(!dir.path().join("gpu.json").exists(), "nothing was measured");
    let nowhere = place("none/gpu.json");
    let run = bench_gpu(&["--mock", "--json", &nowhere]);
    assert!(!run.ok() && run.stderr.contains("none/gpu.json") && run.stdout.is_empty(), "{}", run.stderr);
}

#[test]
fn a_first_run_without_a_gpu_has_a_result_for_every_part_and_one_archive() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/cuda/first_run.py");
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("first_run.tar.gz");
    let mut command = Command::new("python3");
    // A developer's machine may have a GPU, and packages to compare with: none of them is visible here.
    command
        .env("CUDA_VISIBLE_DEVICES", "")
        .env_remove("PYTHONPATH")
        .args(["-B", "-S", script])
        .arg(env!("CARGO_BIN_EXE_bench-gpu"))
        .arg(&archive);
    let Ok(output) = command.stdin(Stdio::null()).output() else {
        return skipped("there is no python3");
    };
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let read =
        Command::new("tar").args(["xzOf", archive.to_str().unwrap(), "first_run/results.jsonl"]).output().unwrap();
    let results: Vec<Value> =
        String::from_utf8(read.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(results.len() > 25, "{said}");
    for result in &results {
        let outcome = result["outcome"].as_str().unwrap();
        // The program knows every part and every argument of the table: a wrong one would be a failure.
        assert!(outcome == "no GPU" || outcome == "absent", "{result}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_head_width_shape_or_format_without_kernels_is_refused() {
    let run = bench_gpu(&["--mock", "--head-dims", "128,72"]);
    assert!(!run.ok() && run.stderr.contains("--head-dims 72: expected widths among"), "{}", run.stderr);
    let run = bench_gpu(&["--mock", "--compared", "smollm2-135m"]);
    assert!(!run.ok() && run.stderr.contains("--compared smollm2-135m: expected tiny"), "{}", run.stderr);
    let run = bench_gpu(&["--device", "cpu", "--model", "none", "--weights", "fp8", "--parts", "decode"]);
    assert!(!run.ok() && run.stderr.contains("--weights fp8: a format of weights on a GPU"), "{}", run.stderr);
    let run = bench_gpu(&["--model", "none", "--weights", "fp8", "--parts", "agreement"]);
    assert!(!run.ok() && run.stderr.contains("leave out --model"), "{}", run.stderr);
}

#[test]
fn goals_are_judged_by_the_reports_of_earlier_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let check = r#"{"device": "NVIDIA H200, one", "agreement": [{"what": "processor and card, 50 prompts",
        "over": "SmolLM2-135M", "positions": 1600, "diverged": 1, "first": 3, "mean": 0.01, "row": 0.02, "largest": 0.1,
        "holds": true}], "notes": ["a note"]}"#;
    let rate = |tokens: f64, floor: &str| {
        format!(
            r#"{{"shape": "qwen2.5-7b", "sequences": 8, "prompt": 2048, "graphs": true, "tokens_per_second": {tokens}{floor}}}"#
        )
    };
    let ours = format!(r#"{{"device": "NVIDIA H200, one", "prefill": [{}]}}"#, rate(100.0, r#", "of_floor": 0.4"#));
    let theirs = format!(r#"{{"device": "NVIDIA H200", "version": "5.17", "prefill": [{}]}}"#, rate(20.0, ""));
    let reports = [file("check.json", check), file("gpu.json", &ours)].join(",");
    let peer = file("peer.json", &theirs);
    let run = bench_gpu(&["--judge", &reports, "--peer", &peer]);
    assert!(run.ok(), "a goal that is missed is no error: {}", run.stderr);
    let line = |what: &str| run.stdout.lines().find(|line| line.starts_with(what)).unwrap_or_default().to_owned();
    assert!(line("text of SmolLM2").contains(" met "), "{}", run.stdout);
    assert!(line("prefill, qwen2.5-7b").contains("MISSED") && line("prefill, of the peer").contains("5.00 ×"));
    let wrong = file("wrong.json", &check.replace("true", "false"));
    assert!(!bench_gpu(&["--judge", &wrong]).ok(), "what is computed wrong is");
    let other = file("other.json", r#"{"device": "NVIDIA A100"}"#);
    let run = bench_gpu(&["--judge", &format!("{reports},{other}")]);
    assert!(!run.ok() && run.stderr.contains("two devices"), "{}", run.stderr);
}
