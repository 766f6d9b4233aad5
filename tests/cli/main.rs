//! The `waymark` program as users run it: commands, output, errors and signals.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod base;
mod bench_agent;
mod change;
mod chat;
mod embedder;
mod evaluate;
mod export;
mod fleet;
mod health;
mod image;
mod inspect;
mod mcp;
mod own_docs;
mod program;
#[path = "../../models/tests/pulled/mod.rs"]
mod pulled;
mod python_client;
mod reload;
mod script;
mod setup;
#[path = "../skipped/mod.rs"]
mod skipped;
mod trained_fingerprint;
mod triples;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;

use serde_json::Value;

use program::{Serving, waymark};

const CORPUS: &str = r#"{"id":"seine","title":"Seine","text":"The Seine is a river that flows through Paris."}
{"id":"louvre","title":"Louvre","text":"The Louvre is a museum in Paris and shows the Mona Lisa."}
{"id":"thames","title":"Thames","text":"The Thames is a river that flows through London."}
"#;

/// Builds an index of `corpus` in `dir` with real embeddings. Returns its path.
fn index(dir: &Path, corpus: &str) -> String {
    let file = dir.join("corpus.jsonl");
    fs::write(&file, corpus).unwrap();
    let out = dir.join("corpus.index");
    let run = waymark(&["index", "build", "--corpus", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(run.ok(), "{}", run.stderr);
    assert!(run.stdout.contains("3 passages, snapshot"), "{}", run.stdout);
    out.to_str().unwrap().to_owned()
}

#[test]
fn an_index_is_built_described_searched_and_served() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), CORPUS);

    let info = waymark(&["index", "info", &index, "--json"]);
    let manifest: Value = serde_json::from_str(&info.stdout).unwrap();
    assert_eq!((manifest["passages"].as_u64(), manifest["embedder"]["dims"].as_u64()), (Some(3), Some(384)));

    let found = waymark(&["search", "--index", &index, "--json", "--k", "2", "river in Paris"]);
    let evidence: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(evidence["hits"][0]["passage"]["id"], "seine", "{}", found.stdout);
    assert_eq!(evidence["hits"].as_array().unwrap().len(), 2);

    let again = waymark(&["index", "build", "--corpus", "x.jsonl", "--out", &index]);
    assert!(!again.ok());
    let server = Serving::start(&["--mock", "--index", &index]);
    let asked = waymark(&["ask", "--url", &server.url, "--json", "Which river flows through Paris?"]);
    assert!(asked.ok(), "{}", asked.stderr);
    let events: Vec<Value> = asked.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((types[0], *types.last().unwrap()), ("started", "finished"));
    let search = events.iter().find(|event| event["type"] == "search_finished").unwrap();
    assert_eq!(search["hits"].as_array().unwrap().len(), 3);

    let shown = waymark(&["ask", "--url", &server.url, "Which river flows through Paris?"]);
    assert!(shown.stdout.contains("search") && shown.stdout.contains("answer  This is the mock"), "{}", shown.stdout);
    assert!(!shown.stdout.contains('\u{1b}'), "colors in a pipe");
    assert!(server.stop(), "SIGTERM must end in success");
}

const QUESTIONS: &str = r#"{"question": "Which river flows through Paris?", "supporting": ["seine"]}
{"question": "Where is the Mona Lisa shown?", "supporting": ["louvre", "absent"], "supporting_complete": true}
{"question": "Which river flows through London?", "supporting": ["thames"], "supporting_complete": false}
{"question": "Who knows?", "supporting": []}
"#;

#[test]
fn retrieval_is_measured_and_explained() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(dir.path(), CORPUS);
    let questions = dir.path().join("questions.jsonl");
    let report = dir.path().join("report.json");
    fs::write(&questions, QUESTIONS).unwrap();
    let questions = questions.to_str().unwrap();
    let args = ["eval", "retrieval", "--index", &index, "--questions", questions, "--k", "3,1"];
    let run = waymark(&[&args[..], &["--json", report.to_str().unwrap()]].concat());
    assert!(run.ok(), "{}", run.stderr);
    assert!(run.stdout.contains("2 questions were left out") && run.stdout.contains("R@3"), "{}", run.stdout);
    assert!(run.stdout.contains("1 supporting passages are not in the index"), "{}", run.stdout);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let ways: Vec<_> = rows.iter().map(|row| row["way"].as_str().unwrap()).collect();
    assert_eq!(ways[..5], ["passage:bm25", "passage:dense", "passage:fused", "graph", "hybrid"]);
    for row in rows {
        // All three passages are within the cut of three, but one of the supporting passages does not exist.
        assert_eq!((&row["recall"]["3"], &row["all_found"]["3"]), (&0.75.into(), &0.5.into()), "{row}");
    }
    assert_eq!((&rows[2]["recall"]["1"], &rows[2]["mrr"]), (&0.75.into(), &1.0.into()), "{}", rows[2]);

    let nowhere = dir.path().join("none/report.json");
    let unread = ["eval", "retrieval", "--index", "no-such.index", "--questions", questions];
    let refused = waymark(&[&unread[..], &["--json", nowhere.to_str().unwrap()]].concat());
    assert!(refused.stderr.contains("report.json"), "said before anything is measured: {}", refused.stderr);

    let refused = waymark(&["eval", "retrieval", "--index", &index, "--questions", questions, "--modes", "psychic"]);
    assert!(!refused.ok() && refused.stderr.contains("psychic"), "{}", refused.stderr);

    let explain = ["search", "--index", &index, "--mode", "graph", "--explain", "Where is the Mona Lisa shown?"];
    let explained = waymark(&explain);
    assert!(explained.ok(), "{}", explained.stderr);
    for part in ["query     Where is the Mona Lisa shown?", "facts: ", "phrases: ", "passages", "mass ", "graph #1"] {
        assert!(explained.stdout.contains(part), "{part:?} is missing in {}", explained.stdout);
    }

    let bench = ["bench", "search", "--index", &index, "--questions", questions, "--ways", "passage:bm25,graph"];
    let load = ["--seconds", "0.3", "--clients", "1,16", "--hanging", "3", "--deadline-ms", "60000", "--json"];
    let run = waymark(&[&bench[..], &load].concat());
    assert!(run.ok(), "{}", run.stderr);
    let rows: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
    let numbers = |field: &str| rows.iter().map(|row| row[field].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((numbers("clients"), numbers("hanging")), (vec![1, 16, 16, 1, 16, 16], vec![0, 0, 3, 0, 0, 3]));
    assert_eq!((numbers("timeouts"), numbers("refused")), (vec![0; 6], vec![0; 6]));
    assert!(numbers("searches").iter().all(|&searches| searches > 0), "{rows:?}");
}

#[test]
fn a_broken_line_is_named_or_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.jsonl");
    fs::write(&file, format!("{CORPUS}{{\"id\": 4, \"tit\n")).unwrap();
    let out = dir.path().join("bad.index");
    let args = ["index", "build", "--corpus", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let refused = waymark(&args);
    assert!(!refused.ok() && refused.stderr.contains("bad.jsonl:4"), "{}", refused.stderr);
    let skipped = waymark(&[&args[..], &["--skip-bad"]].concat());
    assert!(skipped.ok() && skipped.stdout.contains("skipped 1 unreadable records"), "{}", skipped.stdout);
}

#[test]
fn errors_say_what_to_do_and_go_to_standard_error() {
    for (args, words) in [
        (vec!["serve", "--mock", "--max-batch", "0"], "--max-batch"),
        (vec!["serve", "--model", "no-such-model"], "no-such-model"),
        (vec!["serve", "--mock", "--index", "no-such.index"], "no-such.index"),
        // Nobody listens on port 1.
        (vec!["ask", "--url", "http://127.0.0.1:1", "why?"], "cannot reach"),
        (vec!["ask", "--url", "http://127.0.0.1:1", "--index", "x.index", "why?"], "--index configures a new server"),
        (vec!["ask", "--mock", "--otlp-endpoint", "ftp://x", "why?"], "--otlp-endpoint"),
        (vec!["ask", "--mock", "--otlp-endpoint", "https://x", "--otlp-ca", "/no/ca.pem", "why?"], "--otlp-ca"),
        (vec!["ask", "--mock", "--ca", "x.pem", "why?"], "--ca applies to a running server"),
        (
            vec!["ask", "--mock", "--api-key", "wm_0123456789abcdef0123456789", "why?"],
            "--api-key applies to a running server",
        ),
        (vec!["ask", "--mock", "--host", "127.0.0.2", "why?"], "--host has no effect here"),
        (vec!["ask", "--mock", "--port", "8080", "why?"], "--port has no effect here"),
        (vec!["ask", "--mock", "--api-keys", "x.toml", "why?"], "--api-keys has no effect here"),
        (vec!["ask", "--mock", "--state", "x", "why?"], "--state has no effect here"),
        (vec!["ask", "--mock", "--state-days", "1", "why?"], "--state-days has no effect here"),
        (vec!["ask", "--mock", "--tls-cert", "x.pem", "--tls-key", "y.pem", "why?"], "--tls-cert has no effect here"),
        (vec!["bench", "serve", "--url", "http://127.0.0.1:1", "--clients", "0"], "--clients"),
        (vec!["bench", "serve", "--url", "http://127.0.0.1:1", "--clients", "501"], "at most 500"),
    ] {
        let run = waymark(&args);
        assert!(!run.ok(), "{args:?} should fail");
        assert!(run.stderr.contains(words), "{args:?}: {}", run.stderr);
        assert!(run.stdout.is_empty(), "{args:?}: {}", run.stdout);
    }
}

/// Gated repositories of the hub require a token.
#[test]
fn the_hub_is_shown_the_token_and_asked_where_it_is_said_to_be() {
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", hub.local_addr().unwrap());
    let (heads, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in hub.incoming().map_while(Result::ok) {
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap_or(0);
            let _ = heads.send(String::from_utf8_lossy(&head[..read]).to_lowercase());
            let _ = stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    let cache = tempfile::tempdir().unwrap();
    let variables = [("HF_ENDPOINT", address.as_str()), ("HF_TOKEN", "hf_Secret")];
    let run = program::with(&variables, &["pull", "org/name", "--cache", cache.path().to_str().unwrap()]);
    assert!(!run.ok() && run.stderr.contains("org/name") && !run.stderr.contains("hf_Secret"), "{}", run.stderr);
    let heads: Vec<String> = heard.try_iter().collect();
    assert!(heads.iter().any(|head| head.contains("authorization: bearer hf_secret")), "{heads:?}");
}

#[test]
fn help_teaches() {
    let help = waymark(&["--help"]);
    for command in [
        "serve", "demo", "pull", "index", "search", "ask", "chat", "eval", "bench", "key", "policy", "status", "doctor",
    ] {
        assert!(help.stdout.contains(command), "{command}");
    }
    let serve = waymark(&["serve", "--help"]);
    assert!(serve.stdout.contains("WAYMARK_KV_BYTES") && serve.stdout.contains("Examples:"));
    let said = [("eval", "SF-F1"), ("index build", "replaces an earlier one atomically")];
    for (command, said) in said {
        let flags: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = waymark(&flags).stdout;
        // The help text is wrapped.
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(said), "{command} does not tell all it has to say: {help}");
    }
}

#[test]
fn the_description_of_the_interface_is_printed() {
    let yaml = waymark(&["openapi"]);
    assert_eq!(yaml.stdout, fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.yaml")).unwrap());
    let json: Value = serde_json::from_str(&waymark(&["openapi", "--json"]).stdout).unwrap();
    assert!(json["paths"]["/v1/chat/completions"]["post"].is_object());
}

#[test]
fn a_server_with_a_certificate_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let certificate = place("cert.pem");
    let key = place("key.pem");
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = Serving::start(&["--mock", "--tls-cert", &certificate, "--tls-key", &key]);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let ask = ["ask", "--url", &server.url, "--policy-name", "plain", "Who?"];
    let asked = waymark(&[&ask[..], &["--ca", &certificate]].concat());
    assert!(asked.ok() && asked.stdout.contains("tokens written"), "{}", asked.stderr);
    let doubted = waymark(&ask);
    assert!(!doubted.ok() && doubted.stderr.contains("cannot reach https://"), "{}", doubted.stderr);
    assert!(server.stop());
}

#[test]
fn no_proxy_is_asked_for_servers_of_this_machine() {
    // Nobody listens there.
    let proxy = [("ALL_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "example.org")];
    let asked = program::with(&proxy, &["ask", "--mock", "--policy-name", "plain", "Who?"]);
    assert!(asked.ok() && asked.stdout.contains("tokens written"), "{}", asked.stderr);
    let server = Serving::start(&["--mock"]);
    let asked = program::with(&proxy, &["ask", "--url", &server.url, "--policy-name", "plain", "Who?"]);
    assert!(asked.ok() && asked.stdout.contains("tokens written"), "{}", asked.stderr);
    assert!(server.stop());
}

#[test]
fn no_proxy_is_asked_for_an_object_store() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (heard, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap();
            heard.send(String::from_utf8_lossy(&head[..read]).into_owned()).unwrap();
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    let variables = [
        // Nobody listens there.
        ("ALL_PROXY", "http://127.0.0.1:1"),
        ("NO_PROXY", "example.org"),
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "nowhere"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("copy.index");
    let pulled = program::with(&variables, &["index", "pull", "s3://bucket/corpus", out.to_str().unwrap()]);
    let request = requests.try_recv().unwrap_or_default();
    assert!(request.starts_with("GET /"), "{request} {}", pulled.stderr);
    assert!(!pulled.ok());
}

#[test]
fn a_bench_drives_the_mock() {
    let server = Serving::start(&["--mock"]);
    let run = waymark(&[
        "bench",
        "serve",
        "--url",
        &server.url,
        "--model",
        "plain",
        "--count",
        "8",
        "--clients",
        "4",
        "--json",
    ]);
    assert!(run.ok(), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((report["questions"].as_u64(), report["answered"].as_u64()), (Some(8), Some(8)));
    assert_eq!(report["prefill_tokens_recomputed"].as_f64(), Some(0.0));
    assert!(report["prefill_tokens"].as_f64().unwrap() > 0.0);
    assert!(server.stop());
}
