//! Flags for TLS.

use std::path::PathBuf;

/// Flags for TLS.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsArgs {
    /// Certificate chain for HTTPS as PEM, the server's own certificate first; read again on SIGHUP. Without it the
    /// server speaks plain HTTP.
    #[arg(long, env = "WAYMARK_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the first certificate, as PEM.
    #[arg(long, env = "WAYMARK_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// Files for TLS.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// Certificate chain, as PEM.
    pub certificates: PathBuf,
    /// Private key of the first certificate, as PEM.
    pub key: PathBuf,
}

impl TlsArgs {
    /// Resolves the flags. `None` means plain HTTP.
    pub fn resolve(self) -> Option<TlsConfig> {
        Some(TlsConfig { certificates: self.tls_cert?, key: self.tls_key? })
    }
}
