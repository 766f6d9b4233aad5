//! API keys and certificates of a server that starts.

use waymark_runtime::InvalidConfiguration;

use crate::config::ServeConfig;
use crate::keys::ApiKeys;
use crate::server::Tls;

/// API keys and certificates of a server.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) keys: ApiKeys,
    /// Certificates. `None` serves plain HTTP.
    pub(super) tls: Option<Tls>,
}

impl Credentials {
    /// Reads the files that `config` names. Call it before models and indexes are loaded, which may take minutes: a
    /// wrong path is found at once.
    ///
    /// # Errors
    /// If a file cannot be read, or its content is invalid.
    pub(super) fn read(config: &ServeConfig) -> Result<Credentials, InvalidConfiguration> {
        let keys = config.access.keys().map_err(InvalidConfiguration::new)?;
        let tls = config.tls.clone().map(Tls::open).transpose().map_err(InvalidConfiguration::new)?;
        Ok(Credentials { keys, tls })
    }
}
