//! What one connection may take.

use std::time::Duration;

use super::size::seconds;
use super::{ConfigError, at_least_one};

/// What one connection may take, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct ConnectionArgs {
    /// Connections that may be open. Of those beyond, 64 at a time are answered with 503, and the others closed.
    #[arg(long, env = "WAYMARK_MAX_CONNECTIONS", default_value_t = 1024)]
    pub max_connections: usize,

    /// Seconds that the head of a request may take to arrive; of a connection's first one, its TLS handshake included.
    #[arg(long, env = "WAYMARK_HEADER_SECONDS", default_value_t = 15.0, value_parser = seconds)]
    pub header_seconds: f64,

    /// Seconds that the body of a request may take to arrive.
    #[arg(long, env = "WAYMARK_BODY_SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub body_seconds: f64,

    /// Seconds that a client gets to take the rest of its answer once the work for it is over.
    #[arg(long, env = "WAYMARK_SEND_SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub send_seconds: f64,

    /// Seconds that a connection may be kept open between two requests.
    #[arg(long, env = "WAYMARK_IDLE_SECONDS", default_value_t = 75.0, value_parser = seconds)]
    pub idle_seconds: f64,
}

/// What one connection may take.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionConfig {
    /// Connections that may be open.
    pub most: usize,
    /// How long the head of a request may take to arrive.
    pub header: Duration,
    /// How long its body may take.
    pub body: Duration,
    /// How long the client may take what is left of its answer when the work is over.
    pub send: Duration,
    /// How long it may be kept open between two requests.
    pub idle: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { most: 1024, header: seconds(15), body: seconds(30), send: seconds(30), idle: seconds(75) }
    }
}

impl ConnectionArgs {
    /// What the flags mean together.
    ///
    /// # Errors
    /// If no connection could be opened.
    pub fn resolve(self) -> Result<ConnectionConfig, ConfigError> {
        at_least_one(&[("max-connections", self.max_connections)])?;
        // None at all would end every connection before it begins.
        let some = |seconds: f64| Duration::from_secs_f64(seconds.max(0.1));
        Ok(ConnectionConfig {
            most: self.max_connections,
            header: some(self.header_seconds),
            body: some(self.body_seconds),
            send: some(self.send_seconds),
            idle: some(self.idle_seconds),
        })
    }
}
