//! A killed server keeps every response and conversation that it has acknowledged.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::RunningServer;

/// Number of kills.
const KILLS: usize = 12;
/// Time after which no further server is started, whatever the number of kills.
const LIMIT: Duration = Duration::from_secs(60);

fn start(dir: &Path) -> RunningServer {
    RunningServer::start(&["--state", dir.to_str().unwrap()])
}

/// Sends a request. `None` if the server is killed before its answer is whole.
fn send(address: &str, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut socket = TcpStream::connect(address).ok()?;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let length = body.len();
    let entity = format!("content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    socket.write_all(format!("{head}{entity}").as_bytes()).ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

/// Conversation that a server has acknowledged, and its response if that was acknowledged as well.
struct Acknowledged {
    conversation: String,
    response: Option<Value>,
}

/// Begins a conversation and asks in it. `None` if the server is gone.
fn ask(address: &str) -> Option<Acknowledged> {
    let (status, made) = send(address, "POST", "/v1/conversations", &json!({}))?;
    assert_eq!(status, 200, "{made}");
    let conversation = made["id"].as_str().unwrap().to_owned();
    let question = json!({"model": "plain", "input": "Who?", "conversation": conversation});
    let answer = send(address, "POST", "/v1/responses", &question);
    let response = answer.map(|(status, response)| {
        assert_eq!(status, 200, "{response}");
        response
    });
    Some(Acknowledged { conversation, response })
}

/// Returns the time of one conversation, which depends on the disk.
fn time_to_ask(address: &str) -> Duration {
    let begun = Instant::now();
    assert!(ask(address).is_some_and(|seen| seen.response.is_some()));
    begun.elapsed()
}

/// Checks that everything acknowledged is there, and that no turn is half there.
fn check(address: &str, seen: &[Acknowledged]) {
    for Acknowledged { conversation, response } in seen {
        let path = format!("/v1/conversations/{conversation}/items?order=asc");
        let (status, items) = send(address, "GET", &path, &Value::Null).unwrap();
        assert_eq!(status, 200, "{items}");
        let of = |role: &str| items["data"].as_array().unwrap().iter().filter(|item| item["role"] == role).count();
        let turn = (of("user"), of("assistant"));
        // A turn is written as a whole: no question is there without its answer.
        assert!(turn == (1, 1) || (turn == (0, 0) && response.is_none()), "{items}");
        if let Some(response) = response {
            let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
            assert_eq!(send(address, "GET", &path, &Value::Null).unwrap(), (200, response.clone()));
        }
    }
}

#[test]
fn a_killed_server_loses_nothing_that_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut all = Vec::new();
    let mut last = Vec::new();
    let longest = (4 * time_to_ask(&start(dir.path()).address)).max(Duration::from_millis(300));
    for _ in 0..KILLS {
        let mut server = start(dir.path());
        check(&server.address, &last);
        all.append(&mut last);
        let wait = longest.mul_f64(random.random());
        let address = server.address.clone();
        let asking = std::thread::spawn(move || std::iter::from_fn(|| ask(&address)).collect::<Vec<_>>());
        std::thread::sleep(wait);
        // SIGKILL: nothing is flushed, closed or finished.
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        last = asking.join().unwrap();
        if begun.elapsed() > LIMIT {
            break;
        }
    }
    all.append(&mut last);
    let server = start(dir.path());
    check(&server.address, &all);
    let answered = all.iter().filter(|seen| seen.response.is_some()).count();
    assert!(answered > 0, "no response was acknowledged before a kill");
}

#[test]
fn a_state_directory_has_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let _first = start(dir.path());
    let command = ["serve", "--mock", "--port", "0", "--state", dir.path().to_str().unwrap()];
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_waymark")).args(command).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("in use") && said.contains("--state"), "{said}");
}
