//! What the server proves itself with.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::config::TlsConfig;

/// Certificates and their key, which can be read again while connections are open; clones share them.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: TlsConfig,
    current: RwLock<Arc<ServerConfig>>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// There is no certificate in the file.
    #[error("{}: there is no certificate in it", .0.display())]
    None(PathBuf),
    /// Certificates and key do not fit each other, or are of no use.
    #[error("{} and {}: {source}", files.certificates.display(), files.key.display())]
    Unusable {
        /// The files.
        files: TlsConfig,
        /// Why.
        source: rustls::Error,
    },
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When they cannot be read or do not fit each other.
    pub fn open(files: TlsConfig) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(read(&files)?));
        Ok(Self(Arc::new(Shared { files, current })))
    }

    /// Reads the files again: connections that are made from now on get what they hold. After an error everything is as
    /// it was.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn reload(&self) -> Result<(), TlsError> {
        let read = Arc::new(read(&self.0.files)?);
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// What makes the next connection.
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
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
