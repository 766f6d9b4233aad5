//! The `waymark serve` process: port, signals and exit status.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod connections;
mod mapped_files;
mod state;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time that a test gives to anything it waits for: enough for a busy machine with a slow disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `waymark serve --mock`, killed on drop.
struct RunningServer {
    child: Child,
    address: String,
}

impl RunningServer {
    fn start(flags: &[&str]) -> RunningServer {
        RunningServer::start_as(|command| command.args(["serve", "--mock", "--port", "0"]).args(flags))
    }

    fn start_as(setup: impl FnOnce(&mut Command) -> &mut Command) -> RunningServer {
        RunningServer::start_command(env!("CARGO_BIN_EXE_waymark"), setup)
    }

    /// Starts `program`, which is the server or becomes it.
    fn start_command(program: &str, setup: impl FnOnce(&mut Command) -> &mut Command) -> RunningServer {
        let mut command = Command::new(program);
        let mut child = setup(command.stdout(Stdio::piped()).stderr(Stdio::null())).spawn().unwrap();
        let mut line = String::new();
        // Written once the server listens, so nobody has to poll its port.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("said {line:?}"));
        RunningServer { address: address.to_owned(), child }
    }

    fn get(&self, path: &str) -> String {
        self.get_as(path, "")
    }

    fn get_as(&self, path: &str, key: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Opens a request that stays open as long as its socket, because the body never arrives.
    fn occupy(&self) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        write!(socket, "{head}content-length: 100\r\n\r\n{{").unwrap();
        socket
    }

    fn terminate(&self) {
        self.signal("-TERM");
    }

    fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    fn wait(&mut self) -> ExitStatus {
        end_of(&mut self.child)
    }
}

impl Drop for RunningServer {
    // A test that failed has not told its server to stop.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn end_of(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it does not end");
}

/// Creates a key named `name`, stores it in `file`, and returns it.
fn new_key(name: &str, file: &str) -> String {
    let made = Command::new(env!("CARGO_BIN_EXE_waymark")).args(["key", "new", name, "--file", file]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "it never came about that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_ends_an_idle_server_with_success() {
    let mut program = RunningServer::start(&[]);
    assert!(program.get("/ready").starts_with("HTTP/1.1 200"));
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn the_deadline_ends_a_busy_one_with_success_as_well() {
    let mut program = RunningServer::start(&["--drain-seconds", "0.2"]);
    let mut busy = program.occupy();
    // The open request, and the one that asks for the metrics.
    until("a request runs", || program.get("/metrics").contains("waymark_http_in_flight 2"));
    program.terminate();

    let mut answer = String::new();
    busy.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"draining\""), "{answer}");
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    // Both much longer than the test waits for the end.
    let mut program = RunningServer::start(&["--drain-seconds", "600", "--body-seconds", "600"]);
    let busy = program.occupy();
    until("a request runs", || program.get("/metrics").contains("waymark_http_in_flight 2"));
    program.terminate();
    // A second signal counts as one only after the first was handled.
    until("it drains", || program.get("/ready").starts_with("HTTP/1.1 503"));
    program.terminate();
    // 128 and the number of SIGTERM, as shells report it.
    assert_eq!(program.wait().code(), Some(143));
    drop(busy);
}

#[test]
fn a_taken_port_is_told() {
    let program = RunningServer::start(&[]);
    let port = program.address.rsplit(':').next().unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_waymark")).args(["serve", "--mock", "--port", port]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains(port));
}

#[test]
fn a_hangup_has_it_read_its_keys_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.toml");
    let file = path.to_str().unwrap();
    let old = new_key("old", file);
    let log_path = dir.path().join("log");
    let log = std::fs::File::create(&log_path).unwrap();
    let mut program = RunningServer::start_as(|command| {
        command.args(["serve", "--mock", "--port", "0", "--api-keys", file]).stderr(log)
    });
    assert!(program.get("/v1/models").starts_with("HTTP/1.1 401"));
    assert!(program.get_as("/v1/models", &old).starts_with("HTTP/1.1 200"));

    // A file that cannot be read changes nothing.
    std::fs::write(&path, "nonsense").unwrap();
    program.signal("-HUP");
    until("the file was read", || std::fs::read_to_string(&log_path).unwrap().contains("cannot reload the API keys"));
    assert!(program.get_as("/v1/models", &old).starts_with("HTTP/1.1 200"));

    std::fs::remove_file(&path).unwrap();
    let new = new_key("new", file);
    program.signal("-HUP");
    until("the new key is known", || program.get_as("/v1/models", &new).starts_with("HTTP/1.1 200"));
    assert!(program.get_as("/v1/models", &old).starts_with("HTTP/1.1 401"));
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
}

/// `systemctl reload` sends a hang-up, whatever the server was started with.
#[test]
fn a_hangup_does_not_end_a_service_that_has_nothing_to_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let mut program = RunningServer::start_as(|command| {
        command.args(["serve", "--mock", "--port", "0"]).stdin(Stdio::null()).stderr(log)
    });
    program.signal("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(program.get("/v1/models").starts_with("HTTP/1.1 200"));
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn work_that_never_ends_cannot_hold_it_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.toml");
    let file = path.to_str().unwrap();
    new_key("some", file);
    let mut program = RunningServer::start(&["--api-keys", file]);
    // Nothing ever writes into this pipe, so reading the keys again blocks forever.
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    program.signal("-HUP");
    // Time to get stuck in the pipe.
    std::thread::sleep(Duration::from_millis(300));
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn a_hangup_has_it_read_its_policies_again() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        std::fs::create_dir_all(root.path().join("one")).unwrap();
        let text = format!("name = \"{name}\"\nprotocol = \"plain\"\n");
        std::fs::write(root.path().join("one/policy.toml"), text).unwrap();
    };
    write("before");
    let mut program = RunningServer::start(&["--policy-root", root.path().to_str().unwrap()]);
    let mut socket = TcpStream::connect(&program.address).unwrap();
    let head = "POST /v1/policies HTTP/1.1\r\nhost: localhost\r\nconnection: close";
    let body = "{\"directory\": \"one\"}";
    let length = body.len();
    write!(socket, "{head}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    write("after");
    program.signal("-HUP");
    until("the policy has its new name", || program.get("/v1/models").contains("\"after\""));
    assert!(!program.get("/v1/models").contains("\"before\""));
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn a_key_is_made_once_and_stored_as_its_hash() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_waymark")).args(args).output().unwrap();
    let made = run(&["key", "new", "alice", "--scope", "infer,admin", "--requests-per-minute", "60"]);
    let text = String::from_utf8(made.stdout).unwrap();
    let key = text.lines().next().unwrap();
    assert!(key.starts_with("wm_") && text.matches(key).count() == 1, "{text}");
    for line in ["[[key]]", "id = \"alice\"", "scopes = [\"infer\", \"admin\"]", "requests_per_minute = 60"] {
        assert!(text.lines().any(|it| it == line), "{line}: {text}");
    }
    assert!(!run(&["key", "new", "a b"]).status.success());
}

#[test]
fn no_key_is_ever_logged() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let file = dir.path().join("keys.toml");
    let stored = new_key("alice", file.to_str().unwrap());
    let given = "wm_given-by-the-environment-0123456789";
    let unknown = "wm_unknown-to-the-server-0123456789";
    let mut program = RunningServer::start_as(|command| {
        command
            .args(["--log", "trace", "serve", "--mock", "--port", "0", "--log-format", "json", "--api-keys"])
            .arg(&file)
            .env("WAYMARK_API_KEY", given)
            .stderr(std::fs::File::create(&log).unwrap())
    });
    for key in [given, &stored, unknown] {
        program.get_as("/v1/models", key);
        program.get_as("/v1/policies", key);
        program.get_as("/v1/nothing", key);
        program.get_as(&format!("/v1/models?api_key={key}"), "");
    }
    program.signal("-HUP");
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("\"key\":\"environment\"") && log.contains("\"key\":\"alice\""), "{log}");
    for key in [given, &stored, unknown] {
        // Without the prefix that all keys share.
        assert!(!log.contains(&key[3..]), "{key} was logged");
    }
}

/// Starts `waymark serve` with these flags while a stub download of the weights hangs. Returns the server and the
/// process ID of the stub.
fn fetching(dir: &Path, flags: &[&str]) -> (Child, String) {
    use std::os::unix::fs::PermissionsExt;
    // The download runs `python3`, and finds this one first.
    let python = dir.join("python3");
    let started = dir.join("started");
    // `exec` keeps the process ID, by which the test sees if the stub has ended.
    std::fs::write(&python, format!("#!/bin/sh\necho $$ > {}\nexec sleep 600\n", started.display())).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_waymark"))
        .args(["serve", "--port", "0", "--cache"])
        .arg(dir.join("cache"))
        .args(flags)
        .env("PATH", path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The number is whole once its line has ended.
    until("it fetches", || std::fs::read_to_string(&started).is_ok_and(|pid| pid.ends_with('\n')));
    (child, std::fs::read_to_string(&started).unwrap().trim().to_owned())
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_signal_ends_it_while_it_still_fetches_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, fetcher) = fetching(dir.path(), &[]);
    // The download would go on for ten minutes.
    signal(&child, "-TERM");
    assert_eq!(end_of(&mut child).code(), Some(0));
    // Signal 0 only asks if the process exists.
    until("what it started has ended as well", || {
        !Command::new("kill").args(["-0", &fetcher]).stderr(Stdio::null()).status().unwrap().success()
    });
}

#[test]
fn a_hangup_ends_no_start_of_a_server_that_has_something_to_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.toml");
    new_key("some", keys.to_str().unwrap());
    let (mut child, _) = fetching(dir.path(), &["--api-keys", keys.to_str().unwrap()]);
    signal(&child, "-HUP");
    signal(&child, "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it has ended");
    signal(&child, "-TERM");
    assert_eq!(end_of(&mut child).code(), Some(0));
}
