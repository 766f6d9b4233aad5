//! `waymark health`: readiness checks, as an orchestrator runs them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::program::{Serving, waymark, with};

/// Variables that a shell may have set for other commands.
const BARE: [(&str, &str); 3] =
    // Nothing listens at the proxy: a check that went through it would fail.
    [("WAYMARK_HOST", "127.0.0.1"), ("WAYMARK_TLS_CERT", ""), ("ALL_PROXY", "http://127.0.0.1:1")];

#[test]
fn a_server_is_found_by_its_variables_or_its_address_until_it_is_gone() {
    let server = Serving::start(&["--mock"]);
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    let variables = [&BARE[..], &[("WAYMARK_PORT", port.as_str())]].concat();
    let found = with(&variables, &["health"]);
    assert!(found.ok() && found.stdout.contains("is ready"), "{}{}", found.stdout, found.stderr);
    // The address of a server that listens everywhere, which is no address to connect to.
    let listening = [&[("WAYMARK_HOST", "0.0.0.0")][..], &variables[1..]].concat();
    let found = with(&listening, &["health"]);
    assert!(found.ok(), "{}", found.stderr);
    let url = server.url.clone();
    assert!(waymark(&["health", "--url", &url]).ok());
    assert!(server.stop());
    for gone in [waymark(&["health", "--url", &url]), with(&variables, &["health"])] {
        assert!(!gone.ok() && gone.stderr.contains("cannot reach"), "{}", gone.stderr);
    }
}

#[test]
fn over_tls_a_named_server_must_prove_itself_and_its_own_need_not() {
    let dir = tempfile::tempdir().unwrap();
    // Like the certificate of a real server, this one does not name the machine's own address.
    let made = rcgen::generate_simple_self_signed(vec!["rag.example.org".to_owned()]).unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let certificate = place("cert.pem");
    let key = place("key.pem");
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = Serving::start(&["--mock", "--tls-cert", &certificate, "--tls-key", &key]);
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    let own = [("WAYMARK_HOST", "127.0.0.1"), ("WAYMARK_PORT", &*port), ("WAYMARK_TLS_CERT", &*certificate)];
    let found = with(&own, &["health"]);
    assert!(found.ok(), "{}", found.stderr);
    for doubted in [with(&own, &["health", "--ca", &certificate]), waymark(&["health", "--url", &server.url])] {
        assert!(!doubted.ok() && doubted.stderr.contains("cannot reach https://"), "{}", doubted.stderr);
    }
    assert!(server.stop());
}

#[test]
fn a_server_that_takes_no_work_or_says_nothing_is_told_with_the_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for (number, mut stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let _ = stream.read(&mut [0; 4096]);
            if number == 0 {
                let body = r#"{"error":{"message":"the server is shutting down"}}"#;
                let head = format!("HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\n", body.len());
                let _ = write!(stream, "{head}connection: close\r\n\r\n{body}");
            } else {
                silent.push(stream);
            }
        }
    });
    let draining = waymark(&["health", "--url", &url]);
    assert!(!draining.ok() && draining.stderr.contains("the server is shutting down"), "{}", draining.stderr);
    let begun = Instant::now();
    let silent = waymark(&["health", "--url", &url]);
    assert!(!silent.ok() && silent.stderr.contains("timeout"), "{}", silent.stderr);
    // The other commands give a server two minutes.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
