//! More connections than the server may open files for: probes are answered all the same.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use crate::{PATIENCE, RunningServer};

/// Limit of open files of the server, which most systems give a process by default.
const FILES: usize = 1024;

/// Starts a server that may open [`FILES`] files, and raises the limit of the test itself above that. Its connections
/// make no room for others within the time of a probe.
fn limited_server() -> RunningServer {
    assert!(rlimit::increase_nofile_limit(4096).unwrap() >= 4096, "the test itself may open too few files");
    let program = env!("CARGO_BIN_EXE_waymark");
    let script = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
    RunningServer::start_command("sh", |command| {
        let serve = ["serve", "--mock", "--port", "0", "--header-seconds", "600"];
        command.args(["-c", &script, program]).args(serve).stderr(Stdio::null())
    })
}

/// Opens a connection and sends the beginning of a request.
fn open(server: &RunningServer, beginning: &str) -> TcpStream {
    let mut socket = TcpStream::connect(&server.address).unwrap();
    // A connection beyond the limits may be closed already.
    let _ = socket.write_all(beginning.as_bytes());
    socket
}

/// Sends a probe and returns the beginning of its response.
fn probe(server: &RunningServer, path: &str) -> String {
    let mut socket = open(server, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut response = [0; 12];
    let read = socket.read_exact(&mut response);
    format!("{} {:?}", String::from_utf8_lossy(&response), read.err())
}

fn check_probes(server: &RunningServer) {
    for path in ["/health", "/ready"].repeat(5) {
        let response = probe(server, path);
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
    }
}

/// Returns the number of open files of the server. `None` where the system does not tell.
fn open_files(server: &RunningServer) -> Option<usize> {
    Some(std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).ok()?.count())
}

#[test]
fn probes_are_answered_beside_more_idle_connections_than_files() {
    let server = limited_server();
    let idle: Vec<TcpStream> = (0..1030).map(|_| open(&server, "")).collect();
    check_probes(&server);
    // The rest is left to commits and logs.
    assert!(open_files(&server).is_none_or(|files| files <= FILES - 200), "{:?}", open_files(&server));
    drop(idle);
    crate::until("other requests are served again", || probe(&server, "/v1/models").starts_with("HTTP/1.1 200"));
}

#[test]
fn probes_are_answered_while_slow_heads_arrive() {
    let server = limited_server();
    let mut slow: Vec<TcpStream> = (0..1100).map(|_| open(&server, "GET /health HTTP/1.1\r\nx: ")).collect();
    check_probes(&server);
    for _ in 0..10 {
        slow.extend((0..50).map(|_| open(&server, "GET /health HTTP/1.1\r\nx: ")));
        check_probes(&server);
    }
}
