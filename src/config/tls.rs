//! What the server proves itself with.

use std::path::PathBuf;

/// What the server proves itself with, flag by flag.
#[derive(Debug, Clone, clap::Args)]
pub struct TlsArgs {
    /// Certificates to serve HTTPS with, the server's own first, as PEM; read again on SIGHUP. Without them it is HTTP.
    #[arg(long, env = "WAYMARK_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the first certificate, as PEM.
    #[arg(long, env = "WAYMARK_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// What the server proves itself with.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// The certificates.
    pub certificates: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsArgs {
    /// What the flags mean together; `None` for plain HTTP.
    pub fn resolve(self) -> Option<TlsConfig> {
        Some(TlsConfig { certificates: self.tls_cert?, key: self.tls_key? })
    }
}
