//! Minimal HTTP client that exposes every byte and every end of a connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Timeout of a read. No response starts later or pauses longer: comments keep streams alive, and episodes have a time
/// limit.
const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// Server, and the API key with which a client calls it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Address of the server.
    pub(crate) address: SocketAddr,
    /// Secret of the API key.
    pub(crate) key: Arc<str>,
}

impl Target {
    /// Returns the head of a request whose body has `length` bytes.
    pub(crate) fn head(&self, method: &str, path: &str, length: usize) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             authorization: Bearer {}\r\ncontent-length: {length}\r\n\r\n",
            self.key
        )
    }

    /// Opens a connection from `source`, an address of the loopback network.
    pub(crate) async fn connect_from(&self, source: Ipv4Addr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((source, 0)))?;
        socket.connect(self.address).await
    }
}

/// One request on a connection of its own.
pub(crate) struct RawConnection {
    socket: TcpStream,
    /// Bytes received, head included.
    pub(crate) seen: Vec<u8>,
    /// If `true`, the server has closed the connection, or a read has failed.
    pub(crate) closed: bool,
}

impl RawConnection {
    /// Connects and sends a request.
    pub(crate) async fn send(target: &Target, method: &str, path: &str, body: &str) -> io::Result<RawConnection> {
        let request = target.head(method, path, body.len()) + body;
        RawConnection::send_bytes(target, request.as_bytes()).await
    }

    /// Connects and sends these bytes.
    pub(crate) async fn send_bytes(target: &Target, bytes: &[u8]) -> io::Result<RawConnection> {
        let mut socket = TcpStream::connect(target.address).await?;
        socket.write_all(bytes).await?;
        Ok(RawConnection { socket, seen: Vec::new(), closed: false })
    }

    /// Reads the available bytes, at most `most` bytes.
    pub(crate) async fn read(&mut self, most: usize) -> io::Result<usize> {
        let start = self.seen.len();
        self.seen.resize(start + most, 0);
        let read = timeout(READ_TIMEOUT, self.socket.read(&mut self.seen[start..])).await;
        let count = read.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no data within the timeout")));
        self.seen.truncate(start + *count.as_ref().unwrap_or(&0));
        self.closed |= matches!(count, Ok(0) | Err(_));
        count
    }

    /// Reads to the end of the connection.
    pub(crate) async fn rest(&mut self) -> io::Result<()> {
        while self.read(1 << 14).await? > 0 {}
        Ok(())
    }

    /// Returns the status. `None` until the status line has arrived.
    pub(crate) fn status(&self) -> Option<u16> {
        std::str::from_utf8(self.seen.get(9..12)?).ok()?.parse().ok()
    }

    /// Returns the body, decoded if its transfer encoding is chunked.
    pub(crate) fn body(&self) -> String {
        let text = String::from_utf8_lossy(&self.seen);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return String::new() };
        if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            return body.to_owned();
        }
        let mut whole = String::new();
        let mut rest = body;
        while let Some((length, after)) = rest.split_once("\r\n") {
            let Some(chunk) = usize::from_str_radix(length, 16).ok().and_then(|length| after.get(..length)) else {
                break;
            };
            whole.push_str(chunk);
            rest = after.get(chunk.len() + 2..).unwrap_or_default();
        }
        whole
    }
}

/// Sends a request and returns the status and body of its response.
pub(crate) async fn fetch(target: &Target, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut connection = RawConnection::send(target, method, path, body).await?;
    connection.rest().await?;
    let status = connection.status().ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no response"))?;
    Ok((status, connection.body()))
}
