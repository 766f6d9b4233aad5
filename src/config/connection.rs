//! Limits of connections: their number and their timeouts.

use std::time::Duration;

use waymark_runtime::config::at_least_one;
use waymark_runtime::config::seconds;

use super::ServeConfigError;

/// Flags for the limits of connections.
#[derive(Debug, Clone, clap::Args)]
pub struct ConnectionArgs {
    /// Maximum number of open connections, lowered at startup to what the limit of open files permits. The newest 64
    /// connections beyond it get responses from `/health` and `/ready`, and 503 from all other routes.
    #[arg(long, env = "WAYMARK_MAX_CONNECTIONS", default_value_t = 1024)]
    pub max_connections: usize,

    /// Maximum number of open connections from one address, or from one /64 network of IPv6. The default is 7/8 of
    /// `--max-connections`. Behind a proxy, all connections come from one address.
    #[arg(long, env = "WAYMARK_MAX_CONNECTIONS_PER_ADDRESS")]
    pub max_connections_per_address: Option<usize>,

    /// Seconds within which the head of a request must arrive. For the first request of a connection, they include the
    /// TLS handshake.
    #[arg(long, env = "WAYMARK_HEADER_SECONDS", default_value_t = 15.0, value_parser = seconds)]
    pub header_seconds: f64,

    /// Seconds within which the body of a request must arrive. That of an upload has one second more for each 64 KiB.
    #[arg(long, env = "WAYMARK_BODY_SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub body_seconds: f64,

    /// Seconds within which a client must read the rest of its response once the response is complete. The content of a
    /// file has one second more for each 64 KiB.
    #[arg(long, env = "WAYMARK_SEND_SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub send_seconds: f64,

    /// Seconds that a connection may stay idle between two requests.
    #[arg(long, env = "WAYMARK_IDLE_SECONDS", default_value_t = 75.0, value_parser = seconds)]
    pub idle_seconds: f64,
}

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionConfig {
    /// Maximum number of open connections.
    pub max_open: usize,
    /// Maximum number of open connections from one address. `None` stands for 7/8 of `max_open`.
    pub max_per_address: Option<usize>,
    /// Timeout for the head of a request.
    pub header: Duration,
    /// Timeout for the body of a request.
    pub body: Duration,
    /// Timeout for reading the rest of a complete response.
    pub send: Duration,
    /// Timeout for an idle connection.
    pub idle: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            max_open: 1024,
            max_per_address: None,
            header: seconds(15),
            body: seconds(30),
            send: seconds(30),
            idle: seconds(75),
        }
    }
}

impl ConnectionConfig {
    /// Returns the maximum number of open connections from one address. By default the last eighth is left to others.
    pub fn per_address(&self) -> usize {
        self.max_per_address.unwrap_or(self.max_open - self.max_open / 8)
    }
}

impl ConnectionArgs {
    /// Resolves the flags.
    ///
    /// # Errors
    /// If a maximum number of connections is zero.
    pub fn resolve(self) -> Result<ConnectionConfig, ServeConfigError> {
        at_least_one(&[
            ("max-connections", self.max_connections),
            ("max-connections-per-address", self.max_connections_per_address.unwrap_or(1)),
        ])?;
        // A timeout of zero would end every connection at once.
        let timeout = |seconds: f64| Duration::from_secs_f64(seconds.max(0.1));
        Ok(ConnectionConfig {
            max_open: self.max_connections,
            max_per_address: self.max_connections_per_address,
            header: timeout(self.header_seconds),
            body: timeout(self.body_seconds),
            send: timeout(self.send_seconds),
            idle: timeout(self.idle_seconds),
        })
    }
}
