//! Files of an index that are cut off under a running server: the index is unready by name, and the rest continues.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use super::RunningServer;

/// Number of passages: enough for files of many pages.
const PASSAGES: usize = 2_000;

fn post(server: &RunningServer, path: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(&server.address).unwrap();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    write!(socket, "{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// Builds an index in `dir` with vectors of the mock.
fn build(dir: &Path) {
    let corpus = dir.with_extension("jsonl");
    let mut file = File::create(&corpus).unwrap();
    for number in 0..PASSAGES {
        writeln!(file, r#"{{"id": "p{number}", "text": "Passage {number} is about a river and a town."}}"#).unwrap();
    }
    let [corpus, dir] = [&corpus, dir].map(|path| path.to_str().unwrap());
    let args = ["index", "build", "--embedder", "mock", "--triples", "none", "--corpus", corpus, "--out", dir];
    let built = Command::new(env!("CARGO_BIN_EXE_waymark")).args(args).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

#[test]
fn a_mapped_file_that_shrinks_turns_its_index_unready_and_ends_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("rivers");
    build(&dir);
    let flags = ["--embedder", "mock", "--index", dir.to_str().unwrap()];
    for name in ["vectors.bin", "passages.bin"] {
        let mut server = RunningServer::start(&flags);
        let search = || post(&server, "/v1/search", r#"{"query": "a river", "ranking": "dense"}"#);
        let found = search();
        assert!(found.starts_with("HTTP/1.1 200") && server.get("/ready").starts_with("HTTP/1.1 200"), "{found}");
        let path = dir.join("snapshot-1").join(name);
        let whole = std::fs::read(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let failed = search();
        assert!(failed.starts_with("HTTP/1.1 500") && failed.contains(&format!("{name} is damaged")), "{failed}");
        let ready = server.get("/ready");
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("index_damaged"), "{ready}");
        assert!(ready.contains("the index `rivers`") && ready.contains(name), "{ready}");
        let chat = r#"{"model": "plain", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}"#;
        let said = post(&server, "/v1/chat/completions", chat);
        assert!(said.starts_with("HTTP/1.1 200") && server.get("/health").starts_with("HTTP/1.1 200"), "{said}");
        server.terminate();
        assert_eq!(server.wait().code(), Some(0));
        std::fs::write(&path, whole).unwrap();
    }
}
