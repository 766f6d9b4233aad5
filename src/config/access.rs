//! Flags for access: API keys, cache isolation, metrics, hosts and CORS origins.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::ServeConfigError;
use crate::keys::{ApiKeys, KeyEntry, KeyLimits, KeysError, Secret};

/// Flags for access: API keys, cache isolation, metrics, hosts and CORS origins.
#[derive(Debug, Clone, clap::Args)]
pub struct AccessArgs {
    /// File of API keys, as `waymark key new` prints them; read again on SIGHUP. Without keys every client may do
    /// everything.
    #[arg(long, env = "WAYMARK_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,

    /// API key with all scopes; for `ask --url`, the key to send. Set it through the environment, because other users
    /// can read the command line.
    #[arg(long, env = "WAYMARK_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<TypedKey>,

    /// Never share cached prefixes, or cached vectors of search queries, between two keys, so response times do not
    /// reveal what other clients have asked.
    #[arg(long, env = "WAYMARK_PRIVATE_CACHE")]
    pub private_cache: bool,

    /// Maximum number of requests per minute from one client address, or from one /64 network of IPv6. Behind a proxy
    /// all requests come from one address. Unlimited by default.
    #[arg(long, env = "WAYMARK_ADDRESS_REQUESTS_PER_MINUTE", value_name = "N")]
    pub address_requests_per_minute: Option<u32>,

    /// Maximum number of tokens per minute from one client address, of prompts and answers together. Unlimited by
    /// default.
    #[arg(long, env = "WAYMARK_ADDRESS_TOKENS_PER_MINUTE", value_name = "N")]
    pub address_tokens_per_minute: Option<u32>,

    /// Serve the metrics without a key. By default they need the scope `admin` if there are keys.
    #[arg(long, env = "WAYMARK_OPEN_METRICS")]
    pub open_metrics: bool,

    /// Host name that the server answers to, besides IP addresses and `localhost`, such as `rag.example.org`, or `*`
    /// for all; may be given several times. Without API keys other hosts get 403, as a protection against DNS
    /// rebinding; with keys every host is allowed unless names are given.
    #[arg(long = "allowed-host", env = "WAYMARK_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,

    /// Origin whose pages may call the server from a browser, such as `https://example.org`, or `*` for all; may be
    /// given several times. Without it no page may.
    #[arg(long = "cors-origin", env = "WAYMARK_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_origins: Vec<String>,
}

/// API key as the user typed it. Checked later, because clap would print a key that it refuses.
#[derive(Clone)]
pub struct TypedKey(String);

impl TypedKey {
    /// Validates the key.
    ///
    /// # Errors
    /// If the text is not a valid key.
    pub fn secret(&self) -> Result<Secret, ServeConfigError> {
        self.0.parse().map_err(ServeConfigError::Key)
    }
}

impl fmt::Debug for TypedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypedKey(…)")
    }
}

impl FromStr for TypedKey {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

/// Sources of API keys.
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// File of API keys.
    pub file: Option<PathBuf>,
    /// Key with all scopes.
    pub key: Option<Secret>,
}

impl AccessArgs {
    /// Validates the key given by flag or environment.
    ///
    /// # Errors
    /// If the text is not a valid key.
    pub fn key(&self) -> Result<Option<Secret>, ServeConfigError> {
        self.api_key.as_ref().map(TypedKey::secret).transpose()
    }

    /// Resolves the flags to sources of keys.
    pub(super) fn resolve(self) -> Result<AccessConfig, ServeConfigError> {
        Ok(AccessConfig { key: self.key()?, file: self.api_keys })
    }

    /// Returns the limits of each client address.
    pub(super) fn address_limits(&self) -> KeyLimits {
        KeyLimits {
            requests_per_minute: self.address_requests_per_minute,
            tokens_per_minute: self.address_tokens_per_minute,
            ..KeyLimits::default()
        }
    }

    /// Validates the host names.
    pub(super) fn hosts(&self) -> Result<Vec<String>, ServeConfigError> {
        let is_name = |host: &&String| *host == "*" || (!host.is_empty() && !host.contains([':', '/', ' ', '*']));
        match self.allowed_hosts.iter().find(|host| !is_name(host)) {
            Some(host) => Err(ServeConfigError::Host(host.clone())),
            None => Ok(self.allowed_hosts.clone()),
        }
    }

    /// Validates the origins.
    pub(super) fn origins(&self) -> Result<Vec<String>, ServeConfigError> {
        match self.cors_origins.iter().find(|origin| !is_origin(origin)) {
            Some(origin) => Err(ServeConfigError::Origin(origin.clone())),
            None => Ok(self.cors_origins.clone()),
        }
    }
}

impl AccessConfig {
    /// Loads the keys.
    ///
    /// # Errors
    /// If their file cannot be read.
    pub fn keys(&self) -> Result<ApiKeys, KeysError> {
        if self.file.is_none() && self.key.is_none() {
            return Ok(ApiKeys::default());
        }
        let fixed = self.key.as_ref().map(KeyEntry::of_environment).into_iter().collect();
        ApiKeys::open(self.file.as_deref(), fixed)
    }
}

/// Returns `true` if a browser could send `origin` as a page's origin: a scheme and a host with nothing after them.
fn is_origin(text: &str) -> bool {
    text == "*"
        || text.split_once("://").is_some_and(|(scheme, host)| {
            // Browsers send an origin without a path, so one with a path would never match.
            !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '?', '#', ' '])
        })
}
