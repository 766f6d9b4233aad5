//! Connections to an engine: TCP, with TLS where its URL begins with `https://`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;

use crate::trusted_roots::{TrustedRoots, TrustedRootsError};

/// Time for which an idle connection is kept. Servers close theirs after a minute or two.
const IDLE: Duration = Duration::from_secs(50);

/// HTTP client of one engine.
pub(super) type EngineClient = Client<EngineConnector, Full<Bytes>>;

/// Error of a connection that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The handshake failed: the certificate is not accepted, or the server does not speak TLS.
    #[error("{0}")]
    Handshake(String),
    /// No connection within the time limit.
    #[error("no connection within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The URL has no host that a certificate can be for.
    #[error("the URL has no host name")]
    Name,
    /// The connection was refused or lost.
    #[error(transparent)]
    Tcp(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// Opens connections.
#[derive(Clone)]
pub(super) struct EngineConnector {
    tcp: HttpConnector,
    /// `None` for URLs that begin with `http://`.
    tls: Option<TlsConnector>,
    roots: TrustedRoots,
    limit: Duration,
    closed: ClosedConnections,
}

/// Creates a client of an engine at `https://`, if `encrypted`, or at `http://`. `limit` is the time limit of a
/// connection; connections that have ended are counted in `closed`.
///
/// # Errors
/// If the trusted certificates cannot be used.
pub(super) fn client(
    encrypted: bool,
    roots: &TrustedRoots,
    limit: Duration,
    closed: &ClosedConnections,
) -> Result<EngineClient, TrustedRootsError> {
    let mut tcp = HttpConnector::new();
    // A request is one small packet, which must not wait for others.
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp.set_keepalive(Some(IDLE));
    let tls = match encrypted {
        true => Some(TlsConnector::from(Arc::new(roots.client_config()?))),
        false => None,
    };
    let connector = EngineConnector { tcp, tls, roots: roots.clone(), limit, closed: closed.clone() };
    let mut builder = Client::builder(TokioExecutor::new());
    Ok(builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(connector))
}

impl Service<Uri> for EngineConnector {
    type Response = TokioIo<EngineStream>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<TokioIo<EngineStream>, ConnectError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.tcp.poll_ready(context).map_err(|error| ConnectError::Tcp(error.into()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let name = url.host().map(|host| host.trim_start_matches('[').trim_end_matches(']').to_owned());
        let connecting = self.tcp.call(url);
        let tls = self.tls.clone();
        let roots = self.roots.clone();
        let limit = self.limit;
        let closed = self.closed.clone();
        Box::pin(async move {
            let connect = async {
                let stream = connecting.await.map_err(|error| ConnectError::Tcp(error.into()))?.into_inner();
                let Some(tls) = tls else { return Ok(EngineSocket::Plain(stream)) };
                let name = name.and_then(|name| ServerName::try_from(name).ok()).ok_or(ConnectError::Name)?;
                match tls.connect(name, stream).await {
                    Ok(stream) => Ok(EngineSocket::Tls(Box::new(stream))),
                    Err(error) => Err(match roots.explain(&error) {
                        Some(message) => ConnectError::Handshake(message),
                        None => ConnectError::Tcp(error.into()),
                    }),
                }
            };
            let socket = timeout(limit, connect).await.unwrap_or(Err(ConnectError::Late(limit)))?;
            Ok(TokioIo::new(EngineStream { socket, closed }))
        })
    }
}

/// Number of connections to an engine that have ended. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct ClosedConnections(Arc<AtomicU64>);

impl ClosedConnections {
    /// Returns the number.
    pub(super) fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Counts a connection.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Open connection.
#[derive(Debug)]
pub(super) struct EngineStream {
    socket: EngineSocket,
    closed: ClosedConnections,
}

#[derive(Debug)]
enum EngineSocket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for EngineStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Drop for EngineStream {
    fn drop(&mut self) {
        // Counted whichever side closes: an engine can also be restarted after this side has closed its last
        // connection.
        self.closed.add();
    }
}

impl AsyncRead for EngineStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        match &mut stream.socket {
            EngineSocket::Plain(socket) => Pin::new(socket).poll_read(context, into),
            EngineSocket::Tls(socket) => Pin::new(socket).poll_read(context, into),
        }
    }
}

impl AsyncWrite for EngineStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            EngineSocket::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            EngineSocket::Tls(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            EngineSocket::Plain(socket) => Pin::new(socket).poll_flush(context),
            EngineSocket::Tls(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            EngineSocket::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            EngineSocket::Tls(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}
