//! The program itself: its port, its signals, its exit status.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running `waymark serve --mock`; killed when dropped.
struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start(flags: &[&str]) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_waymark"))
            .args(["serve", "--mock", "--port", "0"])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("said {line:?}"));
        Program { address: address.to_owned(), child }
    }

    fn get(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A request that runs for as long as the socket is kept: its body never comes.
    fn occupy(&self) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        write!(socket, "{head}content-length: 100\r\n\r\n{{").unwrap();
        socket
    }

    fn terminate(&self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never came about that {what}");
}

#[test]
fn a_signal_ends_an_idle_server_with_success() {
    let mut program = Program::start(&[]);
    assert!(program.get("/ready").starts_with("HTTP/1.1 200"));
    program.terminate();
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn the_deadline_ends_a_busy_one_with_success_as_well() {
    let mut program = Program::start(&["--drain-seconds", "0.2"]);
    let mut busy = program.occupy();
    until("a request runs", || program.get("/metrics").contains("waymark_http_in_flight 2"));
    program.terminate();

    let mut answer = String::new();
    busy.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"draining\""), "{answer}");
    assert_eq!(program.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut program = Program::start(&["--drain-seconds", "60"]);
    let busy = program.occupy();
    until("a request runs", || program.get("/metrics").contains("waymark_http_in_flight 2"));
    program.terminate();
    until("it drains", || program.get("/ready").starts_with("HTTP/1.1 503"));
    let begun = Instant::now();
    program.terminate();
    assert_eq!(program.wait().code(), Some(143));
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(busy);
}

#[test]
fn a_taken_port_is_told() {
    let program = Program::start(&[]);
    let port = program.address.rsplit(':').next().unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_waymark")).args(["serve", "--mock", "--port", port]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains(port));
}
