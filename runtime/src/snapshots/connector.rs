//! HTTP requests of the object store over `ureq`, which the program already uses, with its TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use ureq::Agent;
use ureq::http::Request;

/// Maximum size of a response's body, in bytes. Parts are smaller.
const MAX_BODY: u64 = 64 << 20;

/// Time limit of connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// Time limit of a whole request.
const REQUEST: Duration = Duration::from_secs(120);

/// Values of `AWS_ALLOW_HTTP` that allow `http://`.
const YES: [&str; 5] = ["1", "true", "on", "yes", "y"];

/// Creates clients over `ureq`. Ignores all options of the store except the one that allows `http://`.
#[derive(Debug, Default)]
pub(super) struct UreqConnector {}

impl HttpConnector for UreqConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allowed = options.get_config_value(&ClientConfigKey::AllowHttp).unwrap_or_default();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(!YES.contains(&allowed.to_ascii_lowercase().as_str()))
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(REQUEST))
            // The signature covers the host, so that no redirect to another host can succeed.
            .max_redirects(0)
            // Without this, the client takes a proxy from the environment.
            .proxy(None)
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
    if let ureq::Error::RequireHttpsOnly(url) = &error {
        let hint = format!("{url} is not https: set AWS_ALLOW_HTTP=true to allow it");
        return HttpError::new(HttpErrorKind::Unknown, io::Error::other(hint));
    }
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use object_store::client::HttpRequestBody;

    use super::*;

    #[tokio::test]
    async fn http_is_spoken_only_if_it_is_allowed() {
        let ask = async |options: ClientOptions| {
            // Nothing listens at this port.
            let request = Request::get("http://127.0.0.1:1/bucket").body(HttpRequestBody::empty()).unwrap();
            let client = UreqConnector::default().connect(&options).unwrap();
            std::error::Error::source(&client.execute(request).await.unwrap_err()).unwrap().to_string()
        };
        let refused = ask(ClientOptions::default()).await;
        assert!(refused.contains("AWS_ALLOW_HTTP=true"), "{refused}");
        for yes in ["true", "1"] {
            let failed = ask(ClientOptions::default().with_config(ClientConfigKey::AllowHttp, yes)).await;
            assert!(!failed.contains("AWS_ALLOW_HTTP"), "{failed}");
        }
    }
}
