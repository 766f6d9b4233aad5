//! HTTPS: certificates, their replacement while serving, and the same timeouts as plain HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use waymark::api::AppState;
use waymark::config::{HttpConfig, TlsConfig};
use waymark::server::{Server, Tls};
use waymark_agent::{Policy, Runtime};
use waymark_engine::mock::Lines;
use waymark_engine::{Engine, EngineConfig, MockBackend};
use waymark_models::chat::ChatTemplate;
use waymark_models::tokenizer::Tokenizer;

/// Time that a test gives to anything it waits for: enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a new certificate for `localhost` and its key into `dir`, and returns the certificate.
fn certify(dir: &Path) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.pem()
}

fn files(dir: &Path) -> TlsConfig {
    TlsConfig { certificates: dir.join("cert.pem"), key: dir.join("key.pem") }
}

struct TlsServer {
    address: SocketAddr,
    tls: Tls,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

async fn start_server(dir: &Path, http: HttpConfig) -> TlsServer {
    let tokenizer = Arc::new(Tokenizer::bytes());
    let backend = MockBackend::script(&tokenizer, &Lines::new(["word ".repeat(100)])).unwrap();
    let backend = backend.with_time(Duration::from_millis(1), Duration::ZERO);
    let engine = Engine::start(Box::new(backend), EngineConfig::default(), tokenizer.table()).unwrap();
    let template = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
    let eos = vec![tokenizer.id("<|im_end|>").unwrap()];
    let runtime = Runtime::new(engine, tokenizer, Some(Arc::new(template)), eos, None);
    let state = AppState::new(runtime, vec![Policy::builtin("plain").unwrap()], http);
    let tls = Tls::open(files(dir)).unwrap();
    let server = Server::bind(([127, 0, 0, 1], 0).into(), state).await.unwrap().with_tls(tls.clone());
    let address = server.address();
    assert_eq!(server.url(), format!("https://{address}"));
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    TlsServer { address, tls, stop: Some(stop), running }
}

/// Connects with a client that trusts only `certificate`.
async fn connect(address: SocketAddr, certificate: &str) -> std::io::Result<TlsStream<TcpStream>> {
    shake(TcpStream::connect(address).await?, certificate).await
}

/// Performs the TLS handshake over an open connection.
async fn shake(socket: TcpStream, certificate: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), socket).await
}

async fn ask(socket: &mut TlsStream<TcpStream>, head: &str, body: &str) -> String {
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A connection may end without a TLS close message.
    let _ = socket.read_to_string(&mut answer).await;
    answer
}

const CHAT: &str = r#"{"model":"plain","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

#[tokio::test]
async fn certificates_change_and_streams_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let old = certify(dir.path());
    let server = start_server(dir.path(), HttpConfig::default()).await;
    let mut streaming = connect(server.address, &old).await.unwrap();
    let stream = tokio::spawn(async move { ask(&mut streaming, "POST /v1/chat/completions", CHAT).await });

    // Half a change is none: a key that does not fit leaves everything as it was.
    let new = certify(dir.path());
    let key = std::fs::read(dir.path().join("key.pem")).unwrap();
    std::fs::write(dir.path().join("key.pem"), "nothing").unwrap();
    assert!(server.tls.reload().unwrap_err().to_string().contains("key.pem"));
    let answer = ask(&mut connect(server.address, &old).await.unwrap(), "GET /health", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    std::fs::write(dir.path().join("key.pem"), key).unwrap();
    server.tls.reload().unwrap();
    assert!(connect(server.address, &old).await.is_err(), "the old certificate is still shown");
    let answer = ask(&mut connect(server.address, &new).await.unwrap(), "GET /health", "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let stream = stream.await.unwrap();
    assert!(stream.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{stream}");
}

#[tokio::test]
async fn a_handshake_that_does_not_come_and_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = certify(dir.path());
    let mut http = HttpConfig::default();
    // Enough for a handshake on a busy machine.
    http.connection.header = Duration::from_secs(4);
    let server = start_server(dir.path(), http).await;
    // Silence, and a client that does not speak TLS.
    for words in ["", "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(words.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await;
        let _ = read.expect("the connection is never closed");
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP/"), "{answer:?}");
    }
    let begun = Instant::now();
    let mut silent = connect(server.address, &certificate).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut answer)).await.unwrap();
    // Earlier than the default.
    assert!(begun.elapsed() < HttpConfig::default().connection.header, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_handshake_is_part_of_the_time_of_the_first_head() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = certify(dir.path());
    let mut http = HttpConfig::default();
    let header = Duration::from_secs(10);
    http.connection.header = header;
    let server = start_server(dir.path(), http).await;
    // Several times, because a busy machine may stand still for seconds, before the handshake or after the end.
    for _ in 0..4 {
        let socket = TcpStream::connect(server.address).await.unwrap();
        tokio::time::sleep(header * 6 / 10).await;
        let begun = Instant::now();
        let Ok(mut silent) = shake(socket, &certificate).await else { continue };
        let _ = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await.unwrap();
        // A separate timeout for the head would begin with the handshake.
        if begun.elapsed() < header {
            return;
        }
    }
    panic!("the head has all of its time after the handshake");
}

#[tokio::test]
async fn a_drain_lets_streams_finish() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = certify(dir.path());
    let mut server = start_server(dir.path(), HttpConfig::default()).await;
    let mut socket = connect(server.address, &certificate).await.unwrap();
    let length = CHAT.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{CHAT}"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 1024];
    assert!(socket.read(&mut first).await.unwrap() > 0);
    drop(server.stop.take());
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(String::from_utf8_lossy(&rest).contains("data: [DONE]"), "{}", String::from_utf8_lossy(&rest));
    server.running.await.unwrap();
}

#[test]
fn what_cannot_be_used_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let said = || Tls::open(files(dir.path())).unwrap_err().to_string();
    assert!(said().contains("cert.pem"), "{}", said());
    let old = certify(dir.path());
    let key = std::fs::read(dir.path().join("key.pem")).unwrap();
    certify(dir.path());
    std::fs::write(dir.path().join("cert.pem"), &old).unwrap();
    assert!(said().contains("key.pem"), "{}", said());
    std::fs::write(dir.path().join("key.pem"), &key).unwrap();
    assert!(Tls::open(files(dir.path())).is_ok());
    std::fs::write(dir.path().join("cert.pem"), &key).unwrap();
    assert!(said().contains("no certificate"), "{}", said());
    std::fs::write(dir.path().join("key.pem"), &old).unwrap();
    // The message must not quote the file, which could hold a key.
    assert!(!said().contains("BEGIN"), "{}", said());
}
