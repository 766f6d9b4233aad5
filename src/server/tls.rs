//! TLS certificates of the server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::config::TlsConfig;

/// Certificate chain and private key, reloadable while connections are open; clones share them.
#[derive(Debug, Clone)]
pub struct Tls(Arc<TlsState>);

#[derive(Debug)]
struct TlsState {
    files: TlsConfig,
    current: RwLock<Arc<ServerConfig>>,
}

/// Error loading the certificates or the key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or has the wrong content.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        source: pem::Error,
    },
    /// The file has no certificate.
    #[error("{}: no certificate found", .0.display())]
    None(PathBuf),
    /// The certificates and the key do not match, or cannot be used.
    #[error("{} and {}: {source}", files.certificates.display(), files.key.display())]
    Unusable {
        /// Paths of the files.
        files: TlsConfig,
        /// Description of the error.
        source: rustls::Error,
    },
}

impl Tls {
    /// Loads the certificates and the key.
    ///
    /// # Errors
    /// If a file cannot be read, or if certificates and key do not match.
    pub fn open(files: TlsConfig) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(read(&files)?));
        Ok(Self(Arc::new(TlsState { files, current })))
    }

    /// Reloads the files. New connections use their new content. If the reload fails, the old certificates stay in
    /// place.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    pub fn reload(&self) -> Result<(), TlsError> {
        let read = Arc::new(read(&self.0.files)?);
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Returns the acceptor for the next connection.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn read(files: &TlsConfig) -> Result<ServerConfig, TlsError> {
    let wrong = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    let certificates = CertificateDer::pem_file_iter(&files.certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(wrong(&files.certificates))?;
    if certificates.is_empty() {
        return Err(TlsError::None(files.certificates.clone()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(wrong(&files.key))?;
    let unusable = |source| TlsError::Unusable { files: files.clone(), source };
    // Chosen explicitly, because the default provider depends on the features that other crates enable.
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(unusable)?;
    // Only HTTP/1.1 is served.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
