//! What computes: devices that are not there, and the bench of a card tried out without one.

use std::fs;

use serde_json::Value;

use super::program::waymark;

/// A device number that no machine of ours has.
const NOWHERE: &str = "cuda:99";

#[test]
fn a_card_that_is_not_there_is_an_error_that_says_what_to_do() {
    let run = waymark(&["bench", "gpu", "--device", NOWHERE]);
    assert!(!run.ok());
    let said = &run.stderr;
    let helps = said.contains("--features cuda") || said.contains("no CUDA device can be used");
    assert!(helps && !said.contains("panicked"), "{said}");
    let run = waymark(&["bench", "gpu", "--device", "gpu"]);
    assert!(run.stderr.contains("use cpu, cuda, cuda:N or auto"), "{}", run.stderr);
}

#[test]
fn the_loads_of_the_card_bench_run_on_the_mock() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("gpu.json");
    let sizes = "--sequences 1,4 --prompt 20 --tokens 8 --prompts 2 --prompt-tokens 40 --rounds 1 --loops 4 --turns 3 \
                 --observed 32 --written 8 --search-ms 1 --shapes tiny --mock";
    let mut line = vec!["bench", "gpu", "--json", json.to_str().unwrap()];
    line.extend(sizes.split_whitespace());
    let run = waymark(&line);
    assert!(run.ok(), "{}", run.stderr);
    assert!(run.stdout.contains("agentic load") && run.stdout.contains("no index was given"), "{}", run.stdout);
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
}
