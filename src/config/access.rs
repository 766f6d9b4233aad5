//! Who may use the server, and from where.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::ConfigError;
use crate::api::auth::{Entry, Keys, KeysError, Secret};

/// Who may use the server, and from where, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct AccessArgs {
    /// File of API keys, as `waymark key new` prints them; read again on SIGHUP. Without keys everybody may do
    /// everything.
    #[arg(long, env = "WAYMARK_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,

    /// An API key that may do everything; for `ask --url`, the key to ask with. Set it by the environment: others can read a command line.
    #[arg(long, env = "WAYMARK_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<TypedKey>,

    /// Never let two keys share cached prefixes, so that nobody can learn from the time an answer takes what others have
    /// asked.
    #[arg(long, env = "WAYMARK_PRIVATE_CACHE")]
    pub private_cache: bool,

    /// Show the metrics to everybody; otherwise they need the scope `admin`, where there are keys.
    #[arg(long, env = "WAYMARK_OPEN_METRICS")]
    pub open_metrics: bool,

    /// Origin whose pages may use the server from a browser, such as `https://example.org`, or `*` for all; may be given
    /// several times. Without it none may.
    #[arg(long = "cors-origin", env = "WAYMARK_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_origins: Vec<String>,
}

/// What was typed as a key. Taken as it is and checked later: clap would repeat what it refuses.
#[derive(Clone)]
pub struct TypedKey(String);

impl TypedKey {
    /// The key, checked.
    ///
    /// # Errors
    /// If it is none.
    pub fn secret(&self) -> Result<Secret, ConfigError> {
        self.0.parse().map_err(ConfigError::Key)
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

/// Where API keys come from.
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// Their file.
    pub file: Option<PathBuf>,
    /// One that may do everything.
    pub key: Option<Secret>,
}

impl AccessArgs {
    /// The key that was typed, checked.
    ///
    /// # Errors
    /// If it is none.
    pub fn key(&self) -> Result<Option<Secret>, ConfigError> {
        self.api_key.as_ref().map(TypedKey::secret).transpose()
    }

    /// Where keys come from.
    pub(super) fn resolve(self) -> Result<AccessConfig, ConfigError> {
        Ok(AccessConfig { key: self.key()?, file: self.api_keys })
    }

    /// The origins, checked.
    pub(super) fn origins(&self) -> Result<Vec<String>, ConfigError> {
        match self.cors_origins.iter().find(|origin| !is_origin(origin)) {
            Some(origin) => Err(ConfigError::Origin(origin.clone())),
            None => Ok(self.cors_origins.clone()),
        }
    }
}

impl AccessConfig {
    /// The keys themselves.
    ///
    /// # Errors
    /// When their file cannot be read.
    pub fn keys(&self) -> Result<Keys, KeysError> {
        if self.file.is_none() && self.key.is_none() {
            return Ok(Keys::default());
        }
        let fixed = self.key.as_ref().map(Entry::of_environment).into_iter().collect();
        Keys::open(self.file.as_deref(), fixed)
    }
}

/// Whether a browser could send this as the origin of a page: a scheme and a host, and nothing after them.
fn is_origin(text: &str) -> bool {
    text == "*"
        || text.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '?', '#', ' '])
        })
}
