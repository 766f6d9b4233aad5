//! Reload of a server's files by SIGHUP.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use super::base::{SMALL, model};
use super::program::{Serving, waymark};

/// Time after which an expected change has not come about.
const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a key in `file`.
fn new_key(name: &str, file: &str) -> String {
    let made = waymark(&["key", "new", name, "--file", file]);
    assert!(made.ok(), "{}", made.stderr);
    made.stdout.trim().to_owned()
}

/// Status and text of the list of models, as `key` gets it.
fn models(server: &Serving, key: &str) -> (u16, String) {
    let asked = reqwest::Client::new().get(format!("{}/v1/models", server.url)).bearer_auth(key).send();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let answer = asked.await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    })
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "it never came about that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_slow_reload_of_policies_holds_up_no_reload_of_keys() {
    let root = tempfile::tempdir().unwrap();
    let keys = root.path().join("keys.toml");
    let file = keys.to_str().unwrap();
    let old = new_key("old", file);
    let dir = root.path().join("policy");
    model(&dir, 6);
    let policy = dir.join("policy.toml");
    fs::write(&policy, "name = \"before\"\nprotocol = \"plain\"\n").unwrap();
    let flags = ["--api-keys", file, "--policy", dir.to_str().unwrap()];
    let server = Serving::start(&[&flags[..], &SMALL].concat());
    assert!(models(&server, &old).1.contains("\"before\""));
    fs::remove_file(&policy).unwrap();
    assert!(Command::new("mkfifo").arg(&policy).status().unwrap().success());
    server.signal("-HUP");
    // Opened once the server reads from the pipe, which holds up the reload of the policy.
    let mut pipe = fs::File::options().write(true).open(&policy).unwrap();
    fs::remove_file(&keys).unwrap();
    let new = new_key("new", file);
    server.signal("-HUP");
    until("the new key is known", || models(&server, &new).0 == 200);
    assert_eq!(models(&server, &old).0, 401);
    pipe.write_all(b"protocol = ").unwrap();
    drop(pipe);
    // The second signal has the policies read once more.
    fs::remove_file(&policy).unwrap();
    fs::write(&policy, "name = \"after\"\nprotocol = \"plain\"\n").unwrap();
    server.signal("-HUP");
    until("the policy has its new name", || models(&server, &new).1.contains("\"after\""));
    assert!(server.stop());
}
