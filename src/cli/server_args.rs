//! Running server that a command asks, and the key it asks with.

use std::path::PathBuf;

use waymark_runtime::environment::variable;

use super::client::{self, Client};
use super::health::local_url;
use crate::config::TypedKey;
use crate::keys::Secret;

/// Address of a running server.
#[derive(Debug, clap::Args)]
pub(super) struct UrlArgs {
    /// URL of the server.
    #[arg(long, env = "WAYMARK_URL", value_name = "URL", value_parser = client::server_url)]
    url: Option<String>,

    /// File of CA certificates (PEM) to trust instead of the public ones when the server uses HTTPS.
    #[arg(long, env = "WAYMARK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Running server that a command asks.
#[derive(Debug, clap::Args)]
pub(super) struct ServerArgs {
    #[command(flatten)]
    server: UrlArgs,

    /// API key of the server.
    #[arg(long, env = "WAYMARK_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<TypedKey>,
}

impl UrlArgs {
    /// Returns the URL of the server and a client of it with `key`. Without `--url`, the server is the one on this
    /// machine.
    pub(super) fn client(&self, key: Option<Secret>) -> anyhow::Result<(String, Client)> {
        let url = self.url.clone().map_or_else(|| local_url(variable), Ok)?;
        // A certificate seldom names this machine's own address; a key is sent only to a server that was named.
        let client = if self.url.is_some() { Client::new(&url).with_key(key) } else { Client::local(&url) };
        Ok((url, client.trusting(self.ca.as_deref())?))
    }
}

impl ServerArgs {
    /// Returns the URL of the server and a client of it. Without `--url`, the server is the one on this machine.
    pub(super) fn client(&self) -> anyhow::Result<(String, Client)> {
        self.server.client(self.api_key.as_ref().map(TypedKey::secret).transpose()?)
    }

    /// Returns `true` if there is a key that is not sent, because no server was named.
    pub(super) fn keeps_key(&self) -> bool {
        self.server.url.is_none() && self.api_key.is_some()
    }
}
