//! An embedder elsewhere: another Waymark, and a server in the form of text-embeddings-inference.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::CORPUS;
use super::program::{ProgramRun, Serving, waymark, with};

/// Flags of an embedder.
type EmbedderFlags<'a> = &'a [&'a str];

/// Builds an index of the corpus in the folder `name` of `root`.
fn built(root: &Path, name: &str, embedder: EmbedderFlags<'_>) -> String {
    let corpus = root.join("corpus.jsonl");
    std::fs::write(&corpus, CORPUS).unwrap();
    let out = root.join(name).to_str().unwrap().to_owned();
    let build = ["index", "build", "--corpus", corpus.to_str().unwrap(), "--out", &out];
    let run = waymark(&[&build[..], embedder].concat());
    assert!(run.ok(), "{}", run.stderr);
    out
}

fn search(index: &str, embedder: EmbedderFlags<'_>, more: &[&str]) -> ProgramRun {
    waymark(&[&["search", "--index", index, "--json", "river in Paris"][..], embedder, more].concat())
}

/// Returns what a search finds, with all scores.
fn found(index: &str, embedder: EmbedderFlags<'_>, more: &[&str]) -> Value {
    let run = search(index, embedder, more);
    assert!(run.ok(), "{}", run.stderr);
    let evidence: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(!evidence["hits"].as_array().unwrap().is_empty(), "{evidence}");
    evidence["hits"].clone()
}

fn post(url: &str, path: &str, body: &Value) -> (u16, Value) {
    let config = ureq::Agent::config_builder().http_status_as_error(false).build();
    let request = config.new_agent().post(format!("{url}{path}")).content_type("application/json");
    let mut response = request.send(body.to_string()).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap())
}

/// Returns the values of the metrics `waymark_query_…` with these names.
fn query_metrics<const N: usize>(url: &str, names: [&str; N]) -> [f64; N] {
    let metrics = ureq::get(format!("{url}/metrics")).call().unwrap().body_mut().read_to_string().unwrap();
    names.map(|name| {
        let name = format!("waymark_query_{name} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name)).expect("the metric exists");
        value.parse().unwrap()
    })
}

#[test]
fn an_index_over_another_waymark_is_that_of_the_same_embedder_here() {
    let root = tempfile::tempdir().unwrap();
    let mock = ["--embedder", "mock"];
    let here = built(root.path(), "here", &mock);
    let embedder = Serving::start(&[&["--mock", "--index", &here][..], &mock].concat());
    let url = format!("{}/v1/embeddings", embedder.url);
    let elsewhere = ["--embedder", &url, "--embedder-model", "mock"];
    let there = built(root.path(), "there", &elsewhere);
    for more in [vec![], vec!["--mode", "graph"], vec!["--mode", "hybrid"], vec!["--ranking", "dense"]] {
        let own = found(&here, &mock, &more);
        for (index, flags) in [(&there, &elsewhere[..]), (&here, &elsewhere), (&there, &mock)] {
            assert_eq!(found(index, flags, &more), own, "{more:?} {flags:?}");
        }
    }
    let info = waymark(&["index", "info", &there, "--json"]);
    let manifest: Value = serde_json::from_str(&info.stdout).unwrap();
    assert_eq!((&manifest["embedder"]["id"], &manifest["embedder"]["dims"]), (&json!("mock"), &json!(64)));
    let unknown = search(&there, &["--embedder", &url, "--embedder-model", "other"], &[]);
    let told = &unknown.stderr;
    assert!(!unknown.ok() && told.contains(&url) && told.contains("the model `other` does not embed"), "{told}");
    // Documents added over an endpoint with the same ID leave the name as it is.
    let more = root.path().join("more.jsonl");
    std::fs::write(&more, "{\"id\": \"arno\", \"text\": \"The Arno is a river in Florence.\"}\n").unwrap();
    let add = ["index", "add", "--index", &here, "--corpus", more.to_str().unwrap()];
    let added = waymark(&[&add[..], &elsewhere].concat());
    assert!(added.ok(), "{}", added.stderr);
    assert_eq!(named_embedder(&here), "mock");
}

#[test]
fn no_proxy_is_asked_for_an_embedder_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let mock = ["--embedder", "mock"];
    let index = built(root.path(), "index", &mock);
    let embedder = Serving::start(&[&["--mock", "--index", &index][..], &mock].concat());
    let url = format!("{}/v1/embeddings", embedder.url);
    // Nobody listens there.
    let proxy = [("ALL_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "example.org")];
    let elsewhere = ["--embedder", &url, "--embedder-model", "mock"];
    let run = with(&proxy, &[&["search", "--index", &index, "river in Paris"][..], &elsewhere].concat());
    assert!(run.ok(), "{}", run.stderr);
    assert!(embedder.stop());
}

/// Returns the name of the embedder that an index keeps.
fn named_embedder(index: &str) -> Value {
    let info = waymark(&["index", "info", index, "--json"]);
    let manifest: Value = serde_json::from_str(&info.stdout).unwrap();
    manifest["embedder"]["source"].clone()
}

#[test]
fn an_index_is_searched_with_the_embedder_that_it_names() {
    let root = tempfile::tempdir().unwrap();
    let mock = ["--embedder", "mock"];
    let here = built(root.path(), "here", &mock);
    let own = found(&here, &mock, &[]);
    assert_eq!(found(&here, &[], &[]), own, "without the flag");
    assert_eq!(named_embedder(&here), "mock");
    let more = root.path().join("more.jsonl");
    std::fs::write(&more, "{\"id\": \"tiber\", \"text\": \"The Tiber is a river in Rome.\"}\n").unwrap();
    let added = waymark(&["index", "add", "--index", &here, "--corpus", more.to_str().unwrap()]);
    assert!(added.ok(), "{}", added.stderr);
    let server = Serving::start(&["--mock", "--index", &here]);
    let (status, rome) = post(&server.url, "/v1/search", &json!({"query": "Tiber river Rome", "ranking": "dense"}));
    assert_eq!((status, &rome["hits"][0]["passage"]["id"]), (200, &json!("tiber")), "{rome}");
    // A folder that is gone is named.
    let absent = root.path().join("gone");
    let gone = search(&here, &["--embedder", absent.to_str().unwrap()], &[]);
    assert!(!gone.ok() && gone.stderr.contains(absent.to_str().unwrap()), "{}", gone.stderr);
}

#[test]
fn a_server_searches_by_an_embedder_elsewhere_until_that_is_away() {
    let root = tempfile::tempdir().unwrap();
    let mock = ["--embedder", "mock"];
    let here = built(root.path(), "here", &mock);
    let embedder = Serving::start(&[&["--mock", "--index", &here][..], &mock].concat());
    let url = embedder.url.clone();
    let elsewhere = ["--embedder", &url, "--embedder-model", "mock", "--embedder-timeout-ms", "4000"];
    let server = Serving::start(&[&["--mock", "--index", &here][..], &elsewhere].concat());
    let dense = json!({"query": "river in Paris", "ranking": "dense"});
    let [own, theirs] = [&embedder.url, &server.url].map(|url| post(url, "/v1/search", &dense));
    assert_eq!((own.0, &own.1["hits"]), (200, &theirs.1["hits"]));
    let texts = json!({"model": "mock", "input": ["one text", "another"]});
    let [own, theirs] = [&embedder.url, &server.url].map(|url| post(url, "/v1/embeddings", &texts).1);
    assert_eq!(own["data"], theirs["data"]);
    let document = json!({"documents": [{"id": "tiber", "text": "The Tiber is a river in Rome."}]});
    assert_eq!(post(&server.url, "/v1/documents", &document).0, 200);
    let (_, rome) = post(&server.url, "/v1/search", &json!({"query": "Tiber river Rome", "ranking": "dense"}));
    assert_eq!(rome["hits"][0]["passage"]["id"], "tiber", "{rome}");
    let counts = ["embeddings_total", "embeddings_cached_total", "embedding_calls_total"];
    assert_eq!(query_metrics(&server.url, counts), [2.0, 0.0, 2.0]);
    let [bytes] = query_metrics(&server.url, ["cache_bytes"]);
    // Two vectors of 64 numbers, with their texts.
    assert!((2.0 * 256.0..1200.0).contains(&bytes), "{bytes}");

    assert!(embedder.stop());
    assert_eq!(post(&server.url, "/v1/search", &dense).0, 200, "the vector of a recent query is kept");
    assert_eq!(query_metrics(&server.url, counts), [3.0, 1.0, 2.0]);
    assert_eq!(query_metrics(&server.url, ["cache_bytes"]), [bytes]);
    let fresh = json!({"query": "bridges of London", "ranking": "dense"});
    let (status, failed) = post(&server.url, "/v1/search", &fresh);
    let error = &failed["error"];
    assert_eq!((status, &error["code"]), (500, &json!("search_failed")), "{failed}");
    assert!(error["message"].as_str().unwrap().contains(&format!("{url}/v1/embeddings")), "{failed}");
    let (status, failed) = post(&server.url, "/v1/embeddings", &texts);
    assert_eq!((status, &failed["error"]["code"]), (503, &json!("embedder_unavailable")), "{failed}");
    // Words need no vector.
    let words = json!({"query": "river in Paris", "ranking": "bm25"});
    assert_eq!(post(&server.url, "/v1/search", &words).0, 200);
    let again = waymark(&[&["serve", "--mock", "--port", "0", "--index", &here][..], &elsewhere].concat());
    assert!(!again.ok() && again.stderr.contains("--embedder") && again.stderr.contains(&url), "{}", again.stderr);
}

#[test]
fn the_real_embedder_elsewhere_finds_the_same_to_the_last_bit() {
    let root = tempfile::tempdir().unwrap();
    let here = built(root.path(), "here", &[]);
    let info = waymark(&["index", "info", &here, "--json"]);
    let manifest: Value = serde_json::from_str(&info.stdout).unwrap();
    // The name under which the index knows it, with the hash of its weights.
    let id = manifest["embedder"]["id"].as_str().unwrap();
    let embedder = Serving::start(&["--mock", "--index", &here]);
    let elsewhere = ["--embedder", &embedder.url, "--embedder-model", id];
    for more in [vec![], vec!["--mode", "hybrid"]] {
        assert_eq!(found(&here, &elsewhere, &more), found(&here, &[], &more));
    }
}

#[test]
fn an_embedder_at_https_is_trusted_by_its_certificate() {
    let root = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| root.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mock = ["--embedder", "mock"];
    let here = built(root.path(), "here", &mock);
    let tls = ["--mock", "--index", &here, "--tls-cert", &certificate, "--tls-key", &key];
    let embedder = Serving::start(&[&tls[..], &mock].concat());
    assert!(embedder.url.starts_with("https://"), "{}", embedder.url);
    let elsewhere = ["--embedder", &embedder.url, "--embedder-model", "mock"];
    let trusted = [&elsewhere[..], &["--embedder-ca", &certificate]].concat();
    assert_eq!(found(&here, &trusted, &[]), found(&here, &mock, &[]));
    let refused = search(&here, &elsewhere, &[]);
    let told = &refused.stderr;
    assert!(!refused.ok() && told.contains("unknown issuer") && told.contains("--embedder-ca"), "{told}");
}

/// Starts a server in the form of text-embeddings-inference, whose vectors have `dims` numbers. Returns its URL.
fn tei(dims: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/embed", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let socket = socket.unwrap();
            std::thread::spawn(move || while answer(&socket, dims).is_some() {});
        }
    });
    url
}

/// Answers one request. `None` if the connection has ended.
fn answer(mut socket: &TcpStream, dims: usize) -> Option<()> {
    let mut reader = BufReader::new(socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    assert!(head.starts_with("POST /embed HTTP/1.1\r\n") && head.contains("Bearer secret"), "{head}");
    let length =
        head.to_ascii_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let vector =
        |text: &Value| -> Vec<usize> { (1..=dims).map(|at| text.as_str().unwrap().len() * 7 % (at + 4)).collect() };
    let reply = json!(body["inputs"].as_array().unwrap().iter().map(vector).collect::<Vec<_>>()).to_string();
    write!(
        socket,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{reply}",
        reply.len()
    )
    .ok()
}

#[test]
fn another_model_and_another_dimension_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let with = |args: &[&str]| super::program::with(&[("MY_KEY", "secret")], args);
    let corpus = root.path().join("corpus.jsonl");
    std::fs::write(&corpus, CORPUS).unwrap();
    let index = root.path().join("index").to_str().unwrap().to_owned();
    let [five, six] = [5, 6].map(tei);
    let flags = |url: &str, model: &str| {
        ["--embedder", url, "--embedder-model", model, "--embedder-key-env", "MY_KEY"].map(str::to_owned)
    };
    let run = |args: &[&str], url: &str, model: &str| {
        let flags = flags(url, model);
        with(&args.iter().copied().chain(flags.iter().map(String::as_str)).collect::<Vec<_>>())
    };
    let build = ["index", "build", "--corpus", corpus.to_str().unwrap(), "--out", &index];
    let built = run(&build, &five, "org/model");
    assert!(built.ok() && built.stdout.contains("embedder org/model"), "{}{}", built.stdout, built.stderr);
    let search = ["search", "--index", &index, "river"];
    assert!(run(&search, &five, "org/model").ok());
    for (url, model, said) in [(&five, "org/other", "org/other"), (&six, "org/model", "(6)")] {
        let refused = run(&search, url, model);
        assert!(!refused.ok() && refused.stderr.contains("org/model"), "{}", refused.stderr);
        assert!(refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    let unnamed = waymark(&["search", "--index", &index, "--embedder", &five, "river"]);
    assert!(!unnamed.ok() && unnamed.stderr.contains("--embedder-model"), "{}", unnamed.stderr);
    // Neither the key nor the URL belongs into the index.
    let mut waiting = vec![PathBuf::from(&index)];
    let mut files = Vec::new();
    while let Some(path) = waiting.pop() {
        match std::fs::read_dir(&path) {
            Ok(entries) => waiting.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => files.push(path),
        }
    }
    // The files of a snapshot are in a folder of their own.
    assert!(files.iter().any(|file| file.to_string_lossy().contains("/snapshot-")), "{files:?}");
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("secret") && !text.contains(five.as_str()), "{}", file.display());
    }
}
