//! API keys of the clients of a run.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use waymark::keys::{KeyEntry, KeyId, KeyLimits, RequestPriority, Scope, Secret};

use crate::http_client::Target;

/// Names of the keys that ordinary clients share.
const CLIENTS: [&str; 3] = ["blue", "green", "red"];

/// API keys of a run: tenants with ordinary requests, one with greedy ones, one with short ones, and the operator.
#[derive(Debug)]
pub(crate) struct ClientKeys {
    operator: Arc<str>,
    clients: Vec<Arc<str>>,
    greedy: Arc<str>,
    short: Arc<str>,
}

impl ClientKeys {
    /// Creates keys and writes the file for `--api-keys`.
    pub(crate) fn create(file: &Path) -> anyhow::Result<ClientKeys> {
        let mut lines = String::new();
        let mut create = |name: &str, scopes: Vec<Scope>| -> Arc<str> {
            let secret = Secret::generate();
            let entry = KeyEntry {
                id: KeyId::new(name),
                digest: secret.digest(),
                scopes,
                limits: KeyLimits::default(),
                private_cache: false,
                indexes: Default::default(),
                priority: RequestPriority::default(),
            };
            lines.push_str(&format!("{entry}\n"));
            secret.reveal().into()
        };
        let tenant = || vec![Scope::Infer, Scope::Index];
        let operator = create("operator", vec![Scope::Infer, Scope::Index, Scope::Admin]);
        let clients = CLIENTS.iter().map(|name| create(name, tenant())).collect();
        let greedy = create("greedy", tenant());
        let short = create("short", tenant());
        std::fs::write(file, lines).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(ClientKeys { operator, clients, greedy, short })
    }

    /// Returns the server's address with the key of the operator.
    pub(crate) fn operator(&self, address: SocketAddr) -> Target {
        Target { address, key: Arc::clone(&self.operator) }
    }

    /// Returns the server's address with the key of the ordinary client with this number.
    pub(crate) fn client(&self, address: SocketAddr, number: u64) -> Target {
        let index = usize::try_from(number).unwrap_or_default() % self.clients.len();
        Target { address, key: Arc::clone(&self.clients[index]) }
    }

    /// Returns the server's address with the key of the clients with long prompts.
    pub(crate) fn greedy(&self, address: SocketAddr) -> Target {
        Target { address, key: Arc::clone(&self.greedy) }
    }

    /// Returns the server's address with the key of the client with short prompts.
    pub(crate) fn short(&self, address: SocketAddr) -> Target {
        Target { address, key: Arc::clone(&self.short) }
    }
}
