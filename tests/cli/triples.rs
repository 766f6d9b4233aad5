//! Sources of triples: files, language models, none.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::CORPUS;
use super::program::{ProgramRun, Serving, waymark, with};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("corpus.jsonl"), CORPUS).unwrap();
        Place { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn build(&self, flags: &[&str]) -> ProgramRun {
        let (corpus, out) = (self.path("corpus.jsonl"), self.path("corpus.index"));
        let args =
            ["index", "build", "--replace", "--corpus", corpus.to_str().unwrap(), "--out", out.to_str().unwrap()];
        waymark(&[&args[..], flags].concat())
    }

    fn info(&self) -> Value {
        let info = waymark(&["index", "info", self.path("corpus.index").to_str().unwrap(), "--json"]);
        serde_json::from_str(&info.stdout).unwrap()
    }
}

/// A stub language model that extracts one triple per passage: its title `is here`. Counts its requests.
fn model(refuses: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let number = count.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || answer(stream.unwrap(), number < refuses));
        }
    });
    (url, requests)
}

fn answer(mut stream: TcpStream, refuses: bool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut length = 0;
    let mut authorised = false;
    for line in reader.by_ref().lines() {
        let line = line.unwrap().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        length = line.strip_prefix("content-length: ").map_or(length, |value| value.parse().unwrap());
        authorised |= line == "authorization: bearer sk-test";
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let question = body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned();
    let text = match question.strip_prefix("Passage:\n```\n") {
        Some(passage) => json!({"triples": [[passage.lines().next(), "is", "here"]]}),
        None => json!({"named_entities": [question.lines().next()]}),
    };
    let (status, reply) = match (authorised, refuses) {
        (false, _) => ("401 Unauthorized", json!({"error": {"message": "no key sk-test"}})),
        (true, true) => ("429 Too Many Requests", json!({"error": {"message": "slow down"}})),
        (true, false) => {
            ("200 OK", json!({"choices": [{"message": {"content": text.to_string()}, "finish_reason": "stop"}]}))
        }
    };
    let reply = reply.to_string();
    // A short wait, because the retries are part of the test's time.
    let head =
        format!("HTTP/1.1 {status}\r\nretry-after: 0.05\r\nconnection: close\r\ncontent-length: {}", reply.len());
    write!(stream, "{head}\r\n\r\n{reply}").unwrap();
}

fn endpoint<'a>(url: &'a str, key: &'a Path) -> Vec<&'a str> {
    let key = key.to_str().unwrap();
    vec!["--triples", "endpoint", "--openie-url", url, "--openie-model", "m", "--openie-key-file", key]
}

#[test]
fn a_file_gives_triples_and_says_what_it_lacks() {
    let place = Place::new();
    let file = place.path("openie.json");
    let docs = json!({"docs": [
        {"idx": "0", "passage": "Seine\nThe Seine is a river that flows through Paris.", "extracted_entities": [],
         "extracted_triples": [["Seine", "flows through", "Paris"], ["Seine", "is"]]},
        {"idx": "1", "passage": "Gone", "extracted_entities": [], "extracted_triples": []},
    ]});
    fs::write(&file, docs.to_string()).unwrap();
    let run = place.build(&["--triples", file.to_str().unwrap()]);
    assert!(run.ok(), "{}", run.stderr);
    for words in [
        "graph of 1 triples (import openie.json): 1 facts between 2 phrases",
        "2 passages have no record",
        "1 records match no passage of the corpus",
    ] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    let info = waymark(&["index", "info", place.path("corpus.index").to_str().unwrap()]);
    assert!(info.stdout.contains("graph     1 triples (import openie.json)"), "{}", info.stdout);

    fs::write(&file, "{\"id\": \"seine\", \"triples\": 7}").unwrap();
    let run = place.build(&["--triples", file.to_str().unwrap()]);
    assert!(!run.ok() && run.stderr.contains("openie.json:1: record 1: field `triples`"), "{}", run.stderr);
    let run = place.build(&["--triples", "no-such-file"]);
    assert!(
        !run.ok() && run.stderr.contains("--triples: expected builtin") && run.stderr.contains("no-such-file"),
        "{}",
        run.stderr
    );
}

#[test]
fn without_a_word_the_built_in_extractor_finds_them() {
    let place = Place::new();
    assert!(place.build(&[]).ok());
    assert_eq!(place.info()["graph"]["source"], "builtin");
    assert!(place.build(&["--triples", "none"]).ok());
    assert!(place.info()["graph"].is_null());
    let index = place.path("corpus.index");
    let run = waymark(&["search", "--index", index.to_str().unwrap(), "--mode", "graph", "river"]);
    assert!(!run.ok() && run.stderr.contains("this index holds no graph"), "{}", run.stderr);
}

#[test]
fn a_model_is_asked_once_for_each_passage_and_never_told_of() {
    let place = Place::new();
    let key = place.path("key");
    fs::write(&key, "sk-test\n").unwrap();
    let (url, requests) = model(2);
    let run = place.build(&endpoint(&url, &key));
    assert!(run.ok(), "{}", run.stderr);
    assert!(
        run.stdout.contains("endpoint m: 3 passages") && run.stdout.contains("2 requests were retried"),
        "{}",
        run.stdout
    );
    // Two for each of three passages, names and triples, and the two that were refused.
    assert_eq!(requests.load(Ordering::SeqCst), 8);
    assert_eq!((&place.info()["graph"]["source"], &place.info()["graph"]["facts"]), (&json!("endpoint m"), &json!(3)));

    let run = place.build(&endpoint(&url, &key));
    assert!(run.ok() && run.stdout.contains("3 of them from stored replies"), "{}{}", run.stdout, run.stderr);
    assert_eq!(requests.load(Ordering::SeqCst), 8);
    // Replies that were paid for can be imported like any other extraction.
    let journal = place.path("corpus.index.openie.jsonl");
    let run = place.build(&["--triples", journal.to_str().unwrap()]);
    assert!(run.stdout.contains("3 records, triples for 3 of 3 passages"), "{}{}", run.stdout, run.stderr);

    fs::write(&key, "sk-wrong\n").unwrap();
    // Without the stored replies, the model must be asked again.
    fs::remove_file(journal).unwrap();
    let run = place.build(&endpoint(&url, &key));
    assert!(!run.ok() && run.stderr.contains("401") && !run.stderr.contains("sk-wrong"), "{}", run.stderr);
}

#[test]
fn the_mock_server_is_an_endpoint_whose_talk_holds_no_triples() {
    let place = Place::new();
    let server = Serving::start(&["--mock"]);
    let url = format!("{}/v1", server.url);
    let flags =
        ["--triples", "endpoint", "--openie-url", &url, "--openie-model", "plain", "--openie-key-env", "NO_SUCH_KEY"];
    let run = place.build(&flags);
    assert!(!run.ok() && run.stderr.contains("3 passages failed, 0 may"), "{}", run.stderr);
    assert!(run.stderr.contains("contains no object with `named_entities`"), "{}", run.stderr);
    let run = place.build(&[&flags[..], &["--openie-failures", "3"]].concat());
    assert!(run.ok() && run.stdout.contains("3 passages failed and have no triples"), "{}{}", run.stdout, run.stderr);
}

#[test]
fn an_endpoint_needs_an_address_and_a_model() {
    let place = Place::new();
    let run = place.build(&["--triples", "endpoint"]);
    assert!(!run.ok() && run.stderr.contains("--openie-url and --openie-model"), "{}", run.stderr);
}

#[test]
fn variables_that_name_another_model_stop_no_change() {
    let place = Place::new();
    let key = place.path("key");
    let more = place.path("more.jsonl");
    let index = place.path("corpus.index");
    fs::write(&key, "sk-test\n").unwrap();
    let (url, requests) = model(0);
    let built = place.build(&[&endpoint(&url, &key)[..], &["--embedder", "mock"]].concat());
    assert!(built.ok(), "{}", built.stderr);
    let rhine = json!({"id": "rhine", "text": "The Rhine is a river.", "triples": [["Rhine", "is", "a river"]]});
    fs::write(&more, rhine.to_string()).unwrap();
    let index = index.to_str().unwrap();
    let more = more.to_str().unwrap();
    let add = ["index", "add", "--embedder", "mock", "--index", index, "--corpus", more];
    let address = ("WAYMARK_OPENIE_URL", url.as_str());
    let other = ("WAYMARK_OPENIE_MODEL", "other");
    let typed = with(&[address], &[&add[..], &["--openie-model", "other"]].concat());
    assert!(!typed.ok() && typed.stderr.contains("come from the model m, not other"), "{}", typed.stderr);
    for variables in [&[address, other][..], &[address]] {
        let run = with(variables, &add);
        assert!(run.ok(), "{variables:?}: {}", run.stderr);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 6, "nobody was asked about what brings its triples");
}
