//! A stub of vLLM: its routes and its JSON, tokens that are a function of all tokens before them, and faults on demand.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use waymark_engine::mock::Random;
use waymark_models::tokenizer::Specials;

use super::{SEED, VOCAB};
use crate::harness::tokenizer;

/// Fault of one streamed request, after a number of tokens.
#[derive(Debug, Clone)]
pub enum StubFault {
    /// The connection is cut.
    Cut(usize),
    /// Silence on an open connection.
    Silence(usize),
    /// An error event, then `[DONE]`: what vLLM sends when its engine process dies.
    ErrorEvent(usize),
    /// `[DONE]` without a `finish_reason`.
    DoneOnly(usize),
    /// The stream is complete, and its tokens come from other weights.
    OtherVersion,
    /// A response with this status and body.
    Refusal(u16, String),
    /// A recorded stream or a whole reply, byte for byte.
    Recorded(String),
}

/// Fault of all requests of a route, until it is taken away.
#[derive(Debug, Clone, Copy)]
pub enum RouteFault {
    /// A response with this status.
    Refusal(u16),
    /// No response.
    Silence,
}

/// State of a stub.
#[derive(Debug)]
pub struct StubState {
    pub faults: Mutex<VecDeque<StubFault>>,
    /// Fault of checks of the identity.
    pub checks: Mutex<Option<RouteFault>>,
    /// Fault of loading adapters.
    pub loads: Mutex<Option<RouteFault>>,
    /// Requests that got no response, by [`RouteFault::Silence`].
    pub silent: AtomicUsize,
    /// Requests that generate tokens: the session's name and the body.
    pub requests: Mutex<Vec<(Option<String>, Value)>>,
    /// Loaded adapters, by name.
    pub adapters: Mutex<BTreeMap<String, String>>,
    /// Seed of the weights.
    pub seed: Mutex<u64>,
    /// Offset that is added to the scores of short sequences, as if the weights were others.
    pub drift: Mutex<f64>,
    /// Number of the next scores of short sequences that are refused, because the queue is full.
    pub busy: AtomicUsize,
    /// Number of checks of the identity so far.
    pub tokenized: AtomicUsize,
    /// If `false`, only `/v1/completions` exists.
    pub generates: bool,
    /// Streams that are open.
    pub streams: AtomicUsize,
}

/// A running stub.
pub struct Stub {
    pub address: SocketAddr,
    pub state: Arc<StubState>,
    serving: Option<JoinHandle<()>>,
    /// Keeps the port of a killed stub, so no other test gets it.
    port: Option<TcpSocket>,
    /// `None` speaks plain HTTP.
    tls: Option<TlsAcceptor>,
}

impl Stub {
    pub async fn start() -> Stub {
        Stub::with(true).await
    }

    /// Starts a stub; without `generates` it has the route of completions only.
    pub async fn with(generates: bool) -> Stub {
        let state = Arc::new(StubState {
            faults: Mutex::default(),
            checks: Mutex::default(),
            loads: Mutex::default(),
            silent: AtomicUsize::new(0),
            requests: Mutex::default(),
            adapters: Mutex::default(),
            seed: Mutex::new(SEED),
            drift: Mutex::new(0.0),
            busy: AtomicUsize::new(0),
            tokenized: AtomicUsize::new(0),
            generates,
            streams: AtomicUsize::new(0),
        });
        let mut stub = Stub { address: ([127, 0, 0, 1], 0).into(), state, serving: None, port: None, tls: None };
        stub.serve().await;
        stub
    }

    /// Starts a stub that speaks HTTPS.
    pub async fn encrypted(tls: TlsAcceptor) -> Stub {
        let mut stub = Stub::start().await;
        stub.restart_with(tls).await;
        stub
    }

    /// Restarts the stub on the same port with another certificate.
    pub async fn restart_with(&mut self, tls: TlsAcceptor) {
        self.kill().await;
        self.tls = Some(tls);
        self.serve().await;
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes the next streamed requests fail, in this order.
    pub fn fail(&self, faults: impl IntoIterator<Item = StubFault>) {
        self.state.faults.lock().unwrap().extend(faults);
    }

    /// Returns the requests so far that stream tokens.
    pub fn streamed(&self) -> Vec<(Option<String>, Value)> {
        let requests = self.state.requests.lock().unwrap();
        requests.iter().filter(|(_, body)| body["stream"] == true).cloned().collect()
    }

    /// Simulates the end of the process: no connection can be made, and all adapters are lost.
    pub async fn kill(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
            let port = TcpSocket::new_v4().unwrap();
            port.set_reuseaddr(true).unwrap();
            port.bind(self.address).unwrap();
            self.port = Some(port);
        }
        self.state.adapters.lock().unwrap().clear();
        // Clients notice that their idle connections are closed.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Starts the stub, on its earlier port if it had one.
    pub async fn serve(&mut self) {
        let listener = match self.port.take() {
            Some(port) => port.listen(1024).unwrap(),
            None => TcpListener::bind(self.address).await.unwrap(),
        };
        self.address = listener.local_addr().unwrap();
        let mut router = Router::new()
            .route("/v1/models", get(models))
            .route("/tokenize", post(tokenize))
            .route("/v1/load_lora_adapter", post(load))
            .route("/v1/unload_lora_adapter", post(unload))
            .route("/v1/completions", post(completions));
        if self.state.generates {
            router = router.route("/inference/v1/generate", post(generate));
        }
        let router = router.fallback(|| async { (StatusCode::NOT_FOUND, axum::Json(json!({"detail": "Not Found"}))) });
        let app: Router = router.with_state(Arc::clone(&self.state));
        let tls = self.tls.clone();
        // Connections end with the task, as those of a killed process do.
        self.serving = Some(tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let app = app.clone();
                let tls = tls.clone();
                connections.spawn(async move {
                    match tls {
                        None => speak(socket, app).await,
                        // A client that does not trust the certificate ends the handshake.
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                speak(socket, app).await;
                            }
                        }
                    }
                });
            }
        }));
    }
}

/// Serves one connection to its end.
async fn speak(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, app: Router) {
    let service = hyper_util::service::TowerToHyperService::new(app);
    let io = hyper_util::rt::TokioIo::new(socket);
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
}

impl Drop for Stub {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

type Shared = State<Arc<StubState>>;

/// Returns the response of a route with a fault. `None` without one.
async fn disturbed(state: &StubState, fault: &Mutex<Option<RouteFault>>) -> Option<Response> {
    let fault = *fault.lock().unwrap();
    match fault? {
        RouteFault::Refusal(status) => Some(refusal(status, "BadRequestError", "told to refuse")),
        RouteFault::Silence => {
            state.silent.fetch_add(1, SeqCst);
            std::future::pending().await
        }
    }
}

async fn models(State(state): Shared) -> Response {
    if let Some(response) = disturbed(&state, &state.checks).await {
        return response;
    }
    let adapters = state.adapters.lock().unwrap();
    let adapters = adapters.keys().map(|name| json!({"id": name, "object": "model", "parent": "tiny"}));
    let mut data = vec![json!({"id": "tiny", "object": "model", "parent": null, "max_model_len": 2048})];
    data.extend(adapters);
    axum::Json(json!({"object": "list", "data": data})).into_response()
}

async fn tokenize(State(state): Shared, axum::Json(body): axum::Json<Value>) -> axum::Json<Value> {
    state.tokenized.fetch_add(1, SeqCst);
    let tokens = tokenizer().encode(body["prompt"].as_str().unwrap(), Specials::Literal).unwrap();
    axum::Json(json!({"count": tokens.len(), "max_model_len": 2048, "tokens": tokens, "token_strs": null}))
}

/// Error in vLLM's form.
fn refusal(status: u16, kind: &str, message: &str) -> Response {
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": status}});
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}

async fn load(State(state): Shared, axum::Json(body): axum::Json<Value>) -> Response {
    if let Some(response) = disturbed(&state, &state.loads).await {
        return response;
    }
    let name = body["lora_name"].as_str().unwrap().to_owned();
    let path = body["lora_path"].as_str().unwrap().to_owned();
    if !std::path::Path::new(&path).is_dir() {
        return refusal(404, "NotFoundError", &format!("Loading lora {name} failed: No adapter found for {path}"));
    }
    if state.adapters.lock().unwrap().insert(name.clone(), path).is_some() {
        return refusal(400, "InvalidUserInput", &format!("The lora adapter '{name}' has already been loaded."));
    }
    format!("Success: LoRA adapter '{name}' added successfully.").into_response()
}

async fn unload(State(state): Shared, axum::Json(body): axum::Json<Value>) -> Response {
    let name = body["lora_name"].as_str().unwrap();
    match state.adapters.lock().unwrap().remove(name) {
        Some(_) => format!("Success: LoRA adapter '{name}' removed successfully.").into_response(),
        None => refusal(404, "NotFoundError", &format!("The lora adapter '{name}' cannot be found.")),
    }
}

async fn generate(State(state): Shared, headers: HeaderMap, axum::Json(body): axum::Json<Value>) -> Response {
    let params = body["sampling_params"].clone();
    answer(&state, &headers, body, "token_ids", &params)
}

async fn completions(State(state): Shared, headers: HeaderMap, axum::Json(body): axum::Json<Value>) -> Response {
    let params = body.clone();
    answer(&state, &headers, body, "prompt", &params)
}

fn answer(state: &Arc<StubState>, headers: &HeaderMap, body: Value, ids: &str, params: &Value) -> Response {
    let session = headers.get("x-session-id").map(|name| name.to_str().unwrap().to_owned());
    state.requests.lock().unwrap().push((session, body.clone()));
    let model = body["model"].as_str().unwrap_or("tiny");
    let adapter = state.adapters.lock().unwrap().get(model).cloned();
    if model != "tiny" && adapter.is_none() {
        return refusal(404, "NotFoundError", &format!("The model `{model}` does not exist. Valid aliases: tiny."));
    }
    let streams = body["stream"] == true;
    let fault = if streams { state.faults.lock().unwrap().pop_front() } else { None };
    match fault {
        Some(StubFault::Refusal(status, body)) => {
            return (StatusCode::from_u16(status).unwrap(), [("content-type", "application/json")], body)
                .into_response();
        }
        Some(StubFault::Recorded(body)) => {
            return ([("content-type", "text/event-stream; charset=utf-8")], body).into_response();
        }
        _ => {}
    }
    let ids: Vec<u32> = serde_json::from_value(body[ids].clone()).unwrap();
    let refuses = !streams && ids.len() < 20;
    if refuses && state.busy.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
        return refusal(503, "ServiceUnavailable", "full");
    }
    let random = Random { seed: *state.seed.lock().unwrap(), vocab: VOCAB };
    let drift = if ids.len() < 20 { *state.drift.lock().unwrap() } else { 0.0 };
    let writer = Writer { random, params: params.clone(), ids, drift };
    if streams { stream(state, &writer, fault) } else { axum::Json(writer.whole()).into_response() }
}

/// Function from a request to its tokens.
struct Writer {
    random: Random,
    params: Value,
    ids: Vec<u32>,
    drift: f64,
}

impl Writer {
    /// Returns the tokens and the reason for their end.
    fn tokens(&self) -> (Vec<u32>, &'static str) {
        let mut all = self.ids.clone();
        let allowed: Option<Vec<u32>> = serde_json::from_value(self.params["allowed_token_ids"].clone()).unwrap();
        let stops: Option<Vec<u32>> = serde_json::from_value(self.params["stop_token_ids"].clone()).unwrap();
        let most = usize::try_from(self.params["max_tokens"].as_u64().unwrap()).unwrap();
        let mut reason = "length";
        while all.len() - self.ids.len() < most {
            let mut next = self.random.next(None, &all);
            if let Some(allowed) = &allowed {
                next = allowed[next as usize % allowed.len()];
            }
            all.push(next);
            if stops.as_ref().is_some_and(|stops| stops.contains(&next)) {
                reason = "stop";
                break;
            }
        }
        (all.split_off(self.ids.len()), reason)
    }

    fn score(&self, at: usize) -> f64 {
        f64::from(self.random.next(None, &self.ids[..=at]) % 50) / -10.0 + self.drift
    }

    fn whole(&self) -> Value {
        let (tokens, reason) = self.tokens();
        let mut scores = vec![Value::Null];
        scores.extend(
            (1..self.ids.len()).map(
                |at| json!({self.ids[at].to_string(): {"logprob": self.score(at), "rank": 1, "decoded_token": "x"}}),
            ),
        );
        let mut choice = choice(&tokens, Some(reason));
        choice["weight_versions"] = json!([{"version": "default", "start": 0, "end": tokens.len()}]);
        choice["prompt_logprobs"] = json!(scores);
        json!({"prompt_logprobs": scores, "choices": [choice], "usage": self.usage(tokens.len())})
    }

    fn usage(&self, sampled: usize) -> Value {
        let cached = (self.ids.len().saturating_sub(1)) / 32 * 32;
        json!({"prompt_tokens": self.ids.len(), "total_tokens": self.ids.len() + sampled, "completion_tokens": sampled,
               "prompt_tokens_details": {"cached_tokens": cached}})
    }
}

fn choice(tokens: &[u32], reason: Option<&str>) -> Value {
    let content: Vec<Value> = tokens
        .iter()
        .map(|id| {
            json!({"token_id": id, "logprob": -0.25, "rank": 1,
        "top_logprobs": [{"token_id": id, "logprob": -0.25, "rank": 1}]})
        })
        .collect();
    let values: Vec<f64> = tokens.iter().map(|_| -0.25).collect();
    json!({"index": 0, "finish_reason": reason, "stop_reason": null, "token_ids": tokens,
           "logprobs": {"content": content, "token_logprobs": values}})
}

/// Counts an open stream.
struct Open(Arc<StubState>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, SeqCst);
    }
}

fn stream(state: &Arc<StubState>, writer: &Writer, fault: Option<StubFault>) -> Response {
    state.streams.fetch_add(1, SeqCst);
    let open = Open(Arc::clone(state));
    let (tokens, reason) = writer.tokens();
    let usage = writer.usage(tokens.len());
    let version = if matches!(fault, Some(StubFault::OtherVersion)) { "step-2" } else { "default" };
    let event = |value: &Value| Bytes::from(format!("data: {value}\n\n"));
    let most = match fault {
        Some(
            StubFault::Cut(count)
            | StubFault::Silence(count)
            | StubFault::ErrorEvent(count)
            | StubFault::DoneOnly(count),
        ) => count,
        _ => usize::MAX,
    };
    let mut events = Vec::new();
    for (at, token) in tokens.iter().enumerate().take(most) {
        let last = at + 1 == tokens.len();
        let mut choice = choice(&[*token], last.then_some(reason));
        if last {
            choice["weight_versions"] = json!([{"version": version, "start": 0, "end": tokens.len()}]);
        }
        events.push(event(&json!({"usage": null, "output_mode": "tokens", "choices": [choice]})));
    }
    let frames = async_stream::stream! {
        let _open = open;
        for event in events {
            yield Ok(event);
            // Each token is a packet of its own, as a real engine sends them.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        match fault {
            Some(StubFault::Cut(_)) => yield Err(std::io::Error::other("killed")),
            Some(StubFault::Silence(_)) => std::future::pending::<()>().await,
            Some(StubFault::ErrorEvent(_)) => {
                yield Ok(event(&json!({"error": {"message": "EngineCore encountered an issue", "code": 500}})));
                yield Ok(Bytes::from_static(b"data: [DONE]\n\n"));
            }
            Some(StubFault::DoneOnly(_)) => yield Ok(Bytes::from_static(b"data: [DONE]\n\n")),
            _ => {
                yield Ok(event(&json!({"usage": usage, "output_mode": "tokens", "choices": []})));
                yield Ok(Bytes::from_static(b"data: [DONE]\n\n"));
            }
        }
    };
    ([("content-type", "text/event-stream; charset=utf-8")], Body::from_stream(frames)).into_response()
}
