//! HTTP requests of the object store over `ureq`, which the program has already, with its TLS.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use ureq::Agent;
use ureq::http::Request;

/// Maximum size of a response's body, in bytes. Parts are smaller.
const MAX_BODY: u64 = 64 << 20;

/// Time limit of connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// Time limit of a whole request.
const REQUEST: Duration = Duration::from_secs(120);

/// Creates clients over `ureq`.
#[derive(Debug, Default)]
pub(super) struct UreqConnector {}

impl HttpConnector for UreqConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(REQUEST))
            // The signature covers the host, so that no other one may be asked.
            .max_redirects(0)
            .user_agent(concat!("waymark/", env!("CARGO_PKG_VERSION")));
        Ok(HttpClient::new(UreqService { agent: Arc::new(config.build().into()) }))
    }
}

/// Client that runs each request on a blocking thread.
#[derive(Debug)]
struct UreqService {
    agent: Arc<Agent>,
}

#[async_trait]
impl HttpService for UreqService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let agent = Arc::clone(&self.agent);
        let send = move || -> Result<HttpResponse, ureq::Error> {
            let sent = if body.is_empty() {
                agent.run(Request::from_parts(head, ()))
            } else {
                agent.run(Request::from_parts(head, &body[..]))
            };
            let (head, body) = sent?.into_parts();
            let body = body.into_with_config().limit(MAX_BODY).read_to_vec()?;
            Ok(HttpResponse::from_parts(head, HttpResponseBody::from(body)))
        };
        match tokio::task::spawn_blocking(send).await {
            Ok(answered) => answered.map_err(failed),
            Err(error) => Err(HttpError::new(HttpErrorKind::Unknown, error)),
        }
    }
}

fn failed(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
