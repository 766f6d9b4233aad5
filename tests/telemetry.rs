//! Output of a serving process: log lines, and traces over OTLP.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};
use waymark_index::{BuildOptions, Corpus, Document, build};
use waymark_runtime::embedding::Embedding;

/// Builds an index of two passages with the mock embedder.
fn index(dir: &Path) {
    let document = |id: &str, text: &str| Document {
        id: id.into(),
        title: id.into(),
        text: text.into(),
        triples: None,
        metadata: None,
    };
    let documents = vec![document("a", "Goethe wrote Faust."), document("b", "The question is what is asked.")];
    build(Corpus::from_documents("two", documents), &Embedding::Mock, dir, &BuildOptions::default(), &()).unwrap();
}

/// A running server over the mock, whose log is collected.
struct TracedServer {
    child: Child,
    address: String,
    log: Option<JoinHandle<Vec<Value>>>,
}

impl TracedServer {
    fn start(index: &Path, flags: &[&str]) -> TracedServer {
        let mut child = Command::new(env!("CARGO_BIN_EXE_waymark"))
            .args([
                "serve",
                "--mock",
                "--embedder",
                "mock",
                "--port",
                "0",
                "--log",
                "waymark=debug",
                "--log-format",
                "json",
            ])
            .arg("--index")
            .arg(index)
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let read =
            |line: Result<String, _>| serde_json::from_str(&line.unwrap()).expect("every line of the log is JSON");
        // Read all the time, because a full pipe would block the server.
        let log = std::thread::spawn(move || stderr.lines().map(read).collect());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().to_owned();
        TracedServer { child, address, log: Some(log) }
    }

    /// Sends a request on a new connection.
    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        );
        write!(socket, "{head}{headers}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
        socket
    }

    /// Returns the response to a request, and the request ID.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (String, String) {
        let mut answer = String::new();
        self.send(method, path, headers, body).read_to_string(&mut answer).unwrap();
        let id = answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("every answer has an id");
        (id.to_owned(), answer)
    }

    /// Sends SIGTERM, waits for the end, and returns the whole log.
    fn end(mut self) -> Vec<Value> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
        self.log.take().unwrap().join().unwrap()
    }
}

impl Drop for TracedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn chat(model: &str, stream: bool) -> String {
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "what is asked?"}]}).to_string()
}

/// Returns the ID of the request whose span contains a log line.
fn request_of(line: &Value) -> Option<&str> {
    assert!(line["span"].is_null(), "a span stands in the line twice: {line}");
    let spans = line["spans"].as_array()?;
    spans.iter().find(|span| span["name"] == "request")?["id"].as_str()
}

/// Messages about the server itself, outside of any request.
const SERVER_MESSAGES: &[&str] = &["index open", "serving", "shutting down", "draining"];

#[test]
fn every_line_of_a_request_carries_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    index(&path);
    let program = TracedServer::start(&path, &[]);
    let mut asked = BTreeMap::new();
    for (method, path, body, status) in [
        ("POST", "/v1/chat/completions", chat("routerag", true), "200"),
        ("POST", "/v1/chat/completions", chat("routerag", false), "200"),
        ("POST", "/v1/agent", json!({"model": "routerag", "question": "what?", "stream": true}).to_string(), "200"),
        ("POST", "/v1/search", json!({"query": "Faust"}).to_string(), "200"),
        ("POST", "/v1/documents", json!({"documents": [{"id": "c", "text": "Another."}]}).to_string(), "200"),
        ("POST", "/v1/chat/completions", chat("nobody", false), "404"),
        ("POST", "/v1/chat/completions", "{".into(), "400"),
        ("GET", "/nowhere", String::new(), "404"),
        ("GET", "/metrics", String::new(), "200"),
    ] {
        let (id, answer) = program.ask(method, path, "", &body);
        // After `HTTP/1.1 `.
        assert_eq!(&answer[9..12], status, "{answer}");
        asked.insert(id, path);
    }
    let log = program.end();
    for line in &log {
        let message = line["fields"]["message"].as_str().unwrap_or_default();
        let target = line["target"].as_str().unwrap();
        match request_of(line) {
            Some(id) => assert!(asked.contains_key(id), "{line}"),
            None => {
                assert!(!target.starts_with("waymark") || SERVER_MESSAGES.contains(&message), "whose is it? {line}")
            }
        }
    }
    for (id, path) in &asked {
        let lines: Vec<&Value> = log.iter().filter(|line| request_of(line) == Some(id)).collect();
        assert!(lines.iter().any(|line| line["fields"]["message"] == "answered"), "{path}: {lines:?}");
        if *path == "/v1/documents" {
            assert!(
                lines.iter().any(|line| line["fields"]["message"] == "committed"),
                "from another thread: {lines:?}"
            );
        }
    }
}

/// OpenTelemetry collector that stores the received traces.
struct Collector {
    address: String,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    fn start() -> Collector {
        Collector::with("http", "200 OK", |socket| socket)
    }

    /// Starts a collector that answers with `status`.
    fn start_answering(status: &'static str) -> Collector {
        Collector::with("http", status, |socket| socket)
    }

    /// Starts a collector with a new certificate, which is written to `certificate`.
    fn start_tls(certificate: &Path) -> Collector {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(certificate, made.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let config = Arc::new(config);
        let wrap = move |socket| StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), socket);
        Collector::with("https", "200 OK", wrap)
    }

    fn with<S: Read + Write>(
        scheme: &str,
        status: &'static str,
        wrap: impl Fn(TcpStream) -> S + Send + Sync + 'static,
    ) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("{scheme}://{}", listener.local_addr().unwrap());
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let into = Arc::clone(&spans);
        let wrap = Arc::new(wrap);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let into = Arc::clone(&into);
                let wrap = Arc::clone(&wrap);
                std::thread::spawn(move || {
                    let mut socket = BufReader::new(wrap(socket.unwrap()));
                    while take(&mut socket, status, &into).is_some() {}
                });
            }
        });
        Collector { address, spans }
    }
}

/// Reads one request and responds to it. `None` if the connection has ended.
fn take<S: Read + Write>(reader: &mut BufReader<S>, status: &str, into: &Mutex<Vec<Span>>) -> Option<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
    let lower = head.to_ascii_lowercase();
    assert!(lower.contains("content-type: application/x-protobuf"), "{head}");
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
    let spans = request.resource_spans.into_iter().flat_map(|resource| {
        let named = &resource.resource.as_ref().unwrap().attributes;
        assert!(named.iter().any(|pair| pair.key == "service.name"));
        resource.scope_spans.into_iter().flat_map(|scope| scope.spans)
    });
    into.lock().unwrap().extend(spans);
    let socket = reader.get_mut();
    write!(socket, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").ok()?;
    socket.flush().ok()
}

fn attribute<'a>(span: &'a Span, key: &str) -> &'a Attribute {
    let pair = span.attributes.iter().find(|pair| pair.key == key).unwrap_or_else(|| panic!("{key} in {span:?}"));
    pair.value.as_ref().unwrap().value.as_ref().unwrap()
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_trace_tells_of_queue_prefill_decode_and_search() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    index(&path);
    let collector = Collector::start();
    let program = TracedServer::start(&path, &["--otlp-endpoint", &collector.address]);
    let parent = format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n");
    let (streamed, _) = program.ask("POST", "/v1/chat/completions", &parent, &chat("routerag", true));
    // A header that cannot be read begins a trace of its own.
    let (whole, _) = program.ask("POST", "/v1/chat/completions", "traceparent: nonsense\r\n", &chat("routerag", false));
    // The last spans are sent when the program ends.
    program.end();

    let spans = collector.spans.lock().unwrap();
    for (id, given) in [(&streamed, true), (&whole, false)] {
        let wanted = Attribute::StringValue(id.clone());
        let request = spans.iter().find(|span| span.name == "request" && *attribute(span, "id") == wanted).unwrap();
        assert_eq!(hex(&request.trace_id) == TRACE, given, "{request:?}");
        assert_eq!(hex(&request.parent_span_id), if given { CALLER } else { "" });
        assert_eq!(*attribute(request, "status"), Attribute::IntValue(200));
        let below = |name: &str| -> Vec<&Span> {
            let own = spans.iter().filter(|span| span.name == name && span.parent_span_id == request.span_id);
            own.inspect(|span| assert_eq!(span.trace_id, request.trace_id)).collect()
        };
        // Two turns, and the search between them.
        let queue = below("queue");
        let prefill = below("prefill");
        let decode = below("decode");
        let search = below("search");
        assert_eq!((queue.len(), prefill.len(), decode.len(), search.len()), (2, 2, 2, 1));
        for turn in 0..2 {
            let order = [queue[turn], prefill[turn], decode[turn]].map(|span| span.start_time_unix_nano);
            assert!(order.is_sorted() && request.start_time_unix_nano <= order[0]);
            assert!(decode[turn].end_time_unix_nano <= request.end_time_unix_nano);
            assert!(matches!(attribute(decode[turn], "tokens"), Attribute::IntValue(tokens) if *tokens > 10));
        }
        assert!(matches!(attribute(search[0], "hits"), Attribute::IntValue(hits) if *hits > 0));
        assert!(decode[0].end_time_unix_nano <= search[0].end_time_unix_nano);
    }
}

#[test]
fn a_collector_that_is_away_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    index(&path);
    // Nobody listens on port 9.
    let program = TracedServer::start(&path, &["--otlp-endpoint", "http://127.0.0.1:9"]);
    let (_, answer) = program.ask("POST", "/v1/chat/completions", "", &chat("routerag", false));
    assert!(answer.starts_with("HTTP/1.1 200"));
    program.end();
}

#[test]
fn a_collector_that_refuses_traces_is_named_with_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    index(&path);
    for status in ["401 Unauthorized", "503 Service Unavailable"] {
        let collector = Collector::start_answering(status);
        let program = TracedServer::start(&path, &["--otlp-endpoint", &collector.address]);
        let (_, answer) = program.ask("POST", "/v1/chat/completions", "", &chat("routerag", false));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let log = program.end();
        let told: Vec<_> = log.iter().filter(|line| line["fields"]["message"] == "traces are not delivered").collect();
        // Once, however many batches are refused.
        let [told] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(told["fields"]["reason"], format!("it returned {status}"), "{told}");
        assert!(told["fields"]["collector"].as_str().unwrap().starts_with(&collector.address), "{told}");
    }
}

#[test]
fn a_collector_at_https_is_trusted_by_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    index(&path);
    let certificate = dir.path().join("ca.pem");
    let collector = Collector::start_tls(&certificate);
    let ask = |more: &[&str]| {
        let program = TracedServer::start(&path, &[&["--otlp-endpoint", &collector.address][..], more].concat());
        let (id, answer) = program.ask("POST", "/v1/chat/completions", "", &chat("routerag", false));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        (id, program.end())
    };
    // No trace is sent to a collector whose certificate is not trusted.
    let (_, log) = ask(&[]);
    let told: Vec<_> = log.iter().filter(|line| line["fields"]["message"] == "traces are not delivered").collect();
    let [told] = told.as_slice() else { panic!("{told:?}") };
    let reason = told["fields"]["reason"].as_str().unwrap();
    assert!(reason.contains("unknown issuer") && reason.ends_with("by --otlp-ca"), "{told}");
    assert!(collector.spans.lock().unwrap().is_empty());

    let (id, log) = ask(&["--otlp-ca", certificate.to_str().unwrap()]);
    assert!(log.iter().all(|line| line["level"] != "WARN"), "{log:?}");
    let wanted = Attribute::StringValue(id);
    let spans = collector.spans.lock().unwrap();
    assert!(spans.iter().any(|span| span.name == "request" && *attribute(span, "id") == wanted), "{spans:?}");
}
