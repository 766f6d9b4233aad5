//! A short chaos run over the mock: `docs/reliability.md` says what a long one found.
#![cfg(unix)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

#[test]
fn a_short_run_keeps_every_promise() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("server.log");
    // An earlier run had a panic; that is not this one's.
    std::fs::write(&log, "{\"message\":\"panic\"}\n").unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let output = run.args(["--minutes", "0.6", "--seed", "7", "--clients", "24", "--log"]).arg(&log).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    // The run ends before any process is old enough for its memory to be judged; the tests of the report cover that.
    let verdict = "* verdict: **every guarantee held; memory growth could not be judged**\n";
    assert!(report.contains(verdict) && report.contains("* lost: 0\n"), "{report}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(report.contains("* 0 panics in the log") && text.lines().count() > 1, "{report}{text}");
    let counted = |name: &str| -> u64 {
        let line =
            report.lines().find_map(|line| line.trim_start_matches([' ', '*']).strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or_default()
    };
    assert!(counted("finished") > 100, "{report}");
    let checks = checks(&report);
    assert_eq!(checks.len(), 12, "{report}");
    let damaged = counted("bit flips") > counted("bit flips in files that were just replaced");
    for (guarantee, checked) in checks {
        let exercised = match guarantee {
            "`/ready` names the file and block of a flipped bit, and a copy repairs it"
            | "nothing made from a damaged file is published" => damaged,
            "a full disk fails changes and nothing else, and they succeed when it has room again" => {
                counted("times the disk was full") > 0
            }
            _ => true,
        };
        assert!(checked > 0 || !exercised, "{guarantee}: {report}");
    }
    // The last SIGTERM ends the run.
    assert!(counted("times SIGTERM") > 1 && counted("times SIGKILL") > 0, "{report}");
    for fault in
        ["floods of connections", "oversized requests", "greedy requests", "poisoned passages", "acknowledged writes"]
    {
        assert!(counted(fault) > 0, "{fault}: {report}");
    }
    // A merge may just have replaced the file that was chosen.
    assert!(report.contains("* bit flips"), "{report}");
    assert!(counted("times the disk was full") > 0 || report.contains("the disk was never full: "), "{report}");
    let (samples, rest) = report.split("* ").find_map(|line| line.split_once(" memory samples, ")).unwrap();
    let failed = rest.split(' ').next().unwrap();
    assert!(failed.parse::<u32>().unwrap() < samples.parse::<u32>().unwrap(), "every memory sample failed: {report}");
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
    // SIGKILL, so that it can do nothing about it any more.
    run.kill().unwrap();
    run.wait().unwrap();
    for _ in 0..500 {
        if TcpStream::connect(address).is_err() {
            return;
        }
        sleep(Duration::from_millis(20));
    }
    panic!("somebody still listens at {address}");
}
