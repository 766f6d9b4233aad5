//! A short chaos run over the mock: `docs/reliability.md` says what a long one found.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn a_short_run_keeps_every_promise() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("server.log");
    let mut reports = Vec::new();
    // A slow machine comes to fewer faults within the time of a run.
    for seed in 7..11 {
        reports.push(run(&log, seed));
        if missing(&reports).is_empty() {
            break;
        }
    }
    let missing = missing(&reports);
    assert!(missing.is_empty(), "{missing:?}: {}", reports.concat());
}

/// Runs the program over the mock. Returns its report, in which every guarantee held.
fn run(log: &Path, seed: u64) -> String {
    // An earlier run had a panic; that is not this one's.
    std::fs::write(log, "{\"message\":\"panic\"}\n").unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let run = run.args(["--minutes", "0.6", "--clients", "24", "--seed", &seed.to_string(), "--log"]);
    let output = run.arg(log).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    // The run ends before any process is old enough for its memory to be judged; the tests of the report cover that.
    let verdict = "* verdict: **every guarantee held; memory growth could not be judged**\n";
    assert!(report.contains(verdict) && report.contains("* lost: 0\n"), "{report}");
    let text = std::fs::read_to_string(log).unwrap();
    assert!(report.contains("* 0 panics in the log") && text.lines().count() > 1, "{report}{text}");
    assert_eq!(checks(&report).len(), 12, "{report}");
    let (samples, rest) = report.split("* ").find_map(|line| line.split_once(" memory samples, ")).unwrap();
    let failed = rest.split(' ').next().unwrap();
    assert!(failed.parse::<u32>().unwrap() < samples.parse::<u32>().unwrap(), "every memory sample failed: {report}");
    report
}

/// Returns a count of a report. 0 if the report does not have it.
fn count(report: &str, name: &str) -> u64 {
    let line =
        report.lines().find_map(|line| line.trim_start_matches([' ', '*']).strip_prefix(name)?.strip_prefix(": "));
    line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or_default()
}

/// Returns the guarantees and faults that were exercised in none of the runs.
fn missing(reports: &[String]) -> Vec<String> {
    let counted = |name: &str| reports.iter().map(|report| count(report, name)).sum::<u64>();
    let said = |text: &str| reports.iter().any(|report| report.contains(text));
    let damaged = counted("bit flips") > counted("bit flips in files that were just replaced");
    let mut missing = Vec::new();
    for (at, (guarantee, _)) in checks(&reports[0]).into_iter().enumerate() {
        let exercised = match guarantee {
            "`/ready` names the file and block of a flipped bit, and a copy repairs it"
            | "nothing made from a damaged file is published" => damaged,
            "a full disk fails changes and nothing else, and they succeed when it has room again" => {
                counted("times the disk was full") > 0
            }
            _ => true,
        };
        let checked: u64 = reports.iter().map(|report| checks(report)[at].1).sum();
        if exercised && checked == 0 {
            missing.push(guarantee.to_owned());
        }
    }
    // A SIGTERM ends each run.
    let (finished, terminated, runs) = (counted("finished"), counted("times SIGTERM"), reports.len() as u64);
    for (name, exercised) in [
        ("finished", finished > 100),
        ("times SIGTERM", terminated > runs),
        // A merge may just have replaced the file that was chosen.
        ("bit flips", said("* bit flips")),
        ("times the disk was full", counted("times the disk was full") > 0 || said("the disk was never full: ")),
    ] {
        if !exercised {
            missing.push(name.to_owned());
        }
    }
    let faults = [
        "times SIGKILL",
        "floods of connections",
        "oversized requests",
        "greedy requests",
        "poisoned passages",
        "acknowledged writes",
    ];
    missing.extend(faults.iter().filter(|fault| counted(fault) == 0).map(|fault| (*fault).to_owned()));
    missing
}

/// Returns the guarantees of a report, each with the number of its checks.
fn checks(report: &str) -> Vec<(&str, u64)> {
    let guarantees = report.lines().filter_map(|line| {
        let (guarantee, counts) = line.strip_prefix("  * ")?.rsplit_once(": ")?;
        let (checked, _) = counts.split_once(" checks, ")?;
        Some((guarantee, checked.parse().ok()?))
    });
    guarantees.collect()
}

#[test]
fn a_run_that_is_killed_leaves_no_server() {
    let mut run = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let mut run = run.args(["--minutes", "5"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once(',')).unwrap().0;
    TcpStream::connect(address).unwrap();
    // SIGKILL, so it can do nothing about it any more.
    run.kill().unwrap();
    run.wait().unwrap();
    let killed = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(killed.elapsed() < Duration::from_secs(60), "somebody still listens at {address}");
        sleep(Duration::from_millis(20));
    }
}
