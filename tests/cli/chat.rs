//! Conversations: `waymark chat` and `waymark ask --continue`.

use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::program::{ProgramRun, Serving, piped, typed, waymark, with};
use super::skipped::skipped;

/// Returns the length of the prompt that a question had, as its events tell.
fn prompt_tokens(run: &ProgramRun) -> u64 {
    assert!(run.ok(), "{}", run.stderr);
    let started: Value = serde_json::from_str(run.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(started["type"], "started");
    started["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn a_question_is_asked_after_those_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kept/conversation.json");
    let kept = [("WAYMARK_CONVERSATION", file.to_str().unwrap())];
    let server = Serving::start(&["--mock"]);
    let ask = |more: &[&str], question: &str| {
        let flags = ["ask", "--url", &server.url, "--policy-name", "plain", "--json"];
        with(&kept, &[&flags[..], more, &[question]].concat())
    };
    let refused = ask(&["--continue"], "In which city is it?");
    assert!(!refused.ok() && refused.stderr.contains("no conversation to continue"), "{}", refused.stderr);

    let alone = prompt_tokens(&ask(&[], "In which city is it?"));
    let where_is_it = "Where is the Mona Lisa?";
    prompt_tokens(&ask(&[], where_is_it));
    let continued = prompt_tokens(&ask(&["--continue"], "In which city is it?"));
    // The tokens of the mock are bytes.
    assert!(continued >= alone + where_is_it.len() as u64, "{continued} {alone}");
    let longer = prompt_tokens(&ask(&["-c"], "In which city is it?"));
    assert!(longer > continued, "{longer} {continued}");
    // A question without the flag begins a new conversation.
    assert_eq!(prompt_tokens(&ask(&[], "In which city is it?")), alone);
    assert!(server.stop());
}

#[test]
fn a_chat_answers_lines_and_obeys_commands() {
    let server = Serving::start(&["--mock"]);
    let chat = ["chat", "--url", &server.url, "--policy-name", "plain"];
    let lines = "Where is it?\n\n/k 2\n/k\n/trace\nIn which city?\n/reset\n/quit\nnever asked\n";
    let run = typed(lines, &chat);
    assert!(run.ok(), "{}", run.stderr);
    assert_eq!(run.stdout.matches("tokens written").count(), 2, "{}", run.stdout);
    for said in ["2 passages per search", "thinking is shown", "forgot 2 questions and answers"] {
        assert!(run.stdout.contains(said), "{said} is missing in {}", run.stdout);
    }
    let refused = typed("/mod graph\n", &chat);
    assert!(!refused.ok() && refused.stderr.contains("unknown command /mod"), "{}", refused.stderr);
    let refused = typed("/k 1000\n", &chat);
    assert!(!refused.ok() && refused.stderr.contains("1 to 200"), "{}", refused.stderr);
    assert!(server.stop());
}

/// Returns `true` if this process ignores Ctrl-C, as a job in the background of a script does. Programs inherit that.
fn interrupts_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // SIGINT is signal 2, and the mask begins with signal 1.
    mask & 0b10 != 0
}

#[test]
fn an_interrupt_ends_a_chat_that_waits_for_its_next_line() {
    if interrupts_are_ignored() {
        return skipped("this process ignores interrupts");
    }
    let server = Serving::start(&["--mock"]);
    let mut chat = piped(&["chat", "--url", &server.url, "--policy-name", "plain"]);
    // Standard input stays open.
    let mut input = chat.stdin.take().unwrap();
    input.write_all(b"Where is it?\n").unwrap();
    let mut lines = BufReader::new(chat.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("tokens written")));
    let pid = chat.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let end = Instant::now() + Duration::from_secs(60);
    while chat.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = chat.try_wait().unwrap();
    if ended.is_none() {
        chat.kill().unwrap();
        chat.wait().unwrap();
    }
    assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
    drop(input);
    assert!(server.stop());
}

#[test]
fn a_chat_runs_in_one_process_as_well() {
    let run = typed("Who?\nWhen?\n", &["chat", "--mock", "--policy-name", "plain"]);
    assert!(run.ok(), "{}", run.stderr);
    assert_eq!(run.stdout.matches("tokens written").count(), 2, "{}", run.stdout);
}

#[test]
fn without_an_index_a_policy_that_searches_is_told_what_it_needs() {
    for run in [waymark(&["ask", "--mock", "Who?"]), typed("Who?\n", &["chat", "--mock"])] {
        assert!(!run.ok() && run.stderr.contains("waymark index build"), "{}", run.stderr);
        assert!(run.stderr.contains("--policy-name plain"), "{}", run.stderr);
    }
}

#[test]
fn a_url_is_given_with_its_scheme() {
    for args in [
        vec!["ask", "--url", "127.0.0.1:8080", "Who?"],
        vec!["chat", "--url", "127.0.0.1:8080"],
        vec!["health", "--url", "127.0.0.1:8080"],
        vec!["status", "--url", "127.0.0.1:8080"],
    ] {
        let run = waymark(&args);
        assert!(!run.ok() && run.stderr.contains("write http://127.0.0.1:8080"), "{args:?}: {}", run.stderr);
    }
    // Nobody listens on port 1.
    let gone = waymark(&["ask", "--url", "http://127.0.0.1:1", "Who?"]);
    assert!(gone.stderr.contains("no server listens there"), "{}", gone.stderr);
}
