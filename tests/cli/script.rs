//! The repository's scripts, with stubs in place of the programs that they start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use super::program::root;
use super::skipped::skipped;

/// Writes a shell script of this name into `dir`.
fn stub(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Command for a script, with the stubs of `dir` first in `PATH`.
fn command(script: &str, dir: &Path, args: &[&str]) -> Command {
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(root().join(script));
    // The scripts read them, and a developer's shell may have set them.
    command.args(args).env("PATH", path).env_remove("BENCH_SECONDS").env_remove("PEER_SECONDS");
    command
}

/// Runs a script with the stubs of `dir`.
fn run(script: &str, dir: &Path, args: &[&str]) -> Output {
    command(script, dir, args).output().unwrap()
}

#[test]
fn the_peer_of_the_card_bench_does_what_its_own_tests_ask() {
    python_tests("scripts/bench/gpu_peer_test.py");
    python_tests("scripts/bench/gpu_peer_engines_test.py");
}

#[test]
fn the_first_run_on_a_card_does_what_its_own_tests_ask() {
    python_tests("scripts/cuda/first_run_test.py");
}

#[test]
fn the_check_of_a_server_on_a_card_does_what_its_own_tests_ask() {
    python_tests("scripts/cuda/serve_check_test.py");
}

#[test]
fn the_client_for_python_does_what_its_own_tests_ask() {
    python_tests("scripts/package/python/client_test.py");
}

#[test]
fn the_converter_of_question_sets_does_what_its_own_tests_ask() {
    python_tests("scripts/data/convert_test.py");
}

/// Runs the tests of a Python script, where there is Python.
fn python_tests(path: &str) {
    let Ok(output) = Command::new("python3").arg("-B").arg(root().join(path)).output() else {
        return skipped("there is no python3");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn sizes_in_either_form_reach_the_card_bench_and_its_peer() {
    let dir = tempfile::tempdir().unwrap();
    stub(dir.path(), "waymark", "echo \"$*\" >>\"$0.txt\"");
    stub(dir.path(), "python3", "case \"$*\" in *gpu_peer.py*) echo \"$*\" >>\"$0.txt\" ;; esac");
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [waymark, out] = ["waymark", "out"].map(&place);
    let sizes = ["--turns=2", "--mock", "--loops", "3", "--prompt-tokens=40"];
    let output = run("scripts/bench/gpu.sh", dir.path(), &[&[&*waymark, &out][..], &sizes].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    let ours = said("waymark.txt");
    // One run checks, the other measures.
    assert_eq!(ours.matches("--turns=2 --mock --loops 3 --prompt-tokens=40 --parts ").count(), 2, "{ours}");
    let peers = said("python3.txt");
    assert!(peers.trim_end().ends_with("--seconds 240 --turns=2 --loops 3 --prompt-tokens=40"), "{peers}");
}

#[test]
fn a_card_bench_that_hangs_is_ended_and_the_rest_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let hangs = "echo \"$*\" >>\"$0.txt\"; case \"$*\" in *\"--parts info,check\") exec sleep 60 ;; esac";
    stub(dir.path(), "waymark", hangs);
    stub(dir.path(), "python3", "case \"$*\" in *gpu_peer.py*) echo \"$*\" >>\"$0.txt\" ;; esac");
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [waymark, out] = ["waymark", "out"].map(&place);
    let mut script = command("scripts/bench/gpu.sh", dir.path(), &[&waymark, &out, "--loops", "3"]);
    // Enough for the stub to say what it was asked, and for the next part to end.
    let output = script.env("BENCH_SECONDS", "5").output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", String::from_utf8_lossy(&output.stderr));
    let said = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    let ours = said("waymark.txt");
    let parts: Vec<&str> = ours.lines().filter_map(|line| line.split(" --parts ").nth(1)).collect();
    assert_eq!(parts, ["info,check", "ceilings,gemm,decode,prefill,agentic,profile"], "{ours}");
    assert!(said("python3.txt").contains("--loops 3"));
}

#[test]
fn the_smoke_test_says_why_no_answer_came_and_shows_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let serve = "echo http://127.0.0.1:9; echo '\"model\": \"m\"'; exec sleep 60";
    stub(dir.path(), "waymark", serve);
    // 52 is curl's status for an empty reply.
    stub(dir.path(), "curl", "case \"$*\" in */ready) exit 0 ;; *) exit 52 ;; esac");
    let waymark = dir.path().join("waymark").to_str().unwrap().to_owned();
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let output = run(".ci/smoke", dir.path(), &[&waymark]);
    assert!(!output.status.success());
    assert!(said(&output).contains("no answer: curl 52\n    http://127.0.0.1:9"), "{}", said(&output));
    stub(dir.path(), "waymark", &serve.replace("model", "tree"));
    let output = run(".ci/smoke", dir.path(), &[&waymark]);
    assert!(said(&output).contains("which model to ask\n    http://127.0.0.1:9"), "{}", said(&output));
}

#[test]
fn the_tests_of_the_page_are_skipped_without_a_registry_and_fail_if_the_lock_file_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tests")).unwrap();
    let script = dir.path().join("tests/run");
    fs::copy(root().join("page/tests/run"), &script).unwrap();
    stub(dir.path(), "node", "exit 1");
    for (code, skips) in [("ECONNREFUSED", true), ("ENOTFOUND", true), ("EUSAGE", false)] {
        stub(dir.path(), "npm", &format!("echo 'npm error code {code}' >&2; exit 1"));
        let output = command(script.to_str().unwrap(), dir.path(), &[]).env("CHROMIUM", "chromium").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.success(), said.starts_with("skipped: ")), (skips, skips), "{code}: {said}");
        assert!(skips || said.contains(code), "{said}");
    }
}

#[test]
fn a_debian_package_holds_the_program_and_what_belongs_to_it() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return skipped("there is no dpkg-deb");
    }
    let dir = tempfile::tempdir().unwrap();
    let man = "man) echo '.TH waymark 1' >\"$3/waymark.1\" ;;";
    let program = format!("case \"$1\" in --version) echo 'waymark 9.8.7' ;; {man} completions) echo \"# $2\" ;; esac");
    stub(dir.path(), "waymark", &program);
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let output = run("scripts/package/deb.sh", dir.path(), &[&place("waymark"), &place("out")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let package = fs::read_dir(dir.path().join("out")).unwrap().next().unwrap().unwrap();
    assert!(package.file_name().to_str().unwrap().starts_with("waymark_9.8.7_"), "{package:?}");
    let listed = Command::new("dpkg-deb").arg("--contents").arg(package.path()).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in [
        "./usr/bin/waymark",
        "./etc/waymark/waymark.toml",
        "./usr/lib/systemd/system/waymark.service",
        "./usr/share/man/man1/waymark.1.gz",
        "./usr/share/bash-completion/completions/waymark",
    ] {
        assert!(listed.lines().any(|line| line.ends_with(file)), "{file} is missing in\n{listed}");
    }
}
