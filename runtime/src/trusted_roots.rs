//! Certificate authorities that clients of this process trust.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Certificate authorities that a client trusts: those of a file, or the public ones that the program brings.
#[derive(Debug, Clone, Default)]
pub struct TrustedRoots {
    /// `None` stands for the public authorities.
    certificates: Option<Arc<[CertificateDer<'static>]>>,
    /// Flag that names the file. `None` if there is no such flag.
    flag: Option<&'static str>,
}

/// Error returned for a file of certificates.
#[derive(Debug, thiserror::Error)]
pub enum TrustedRootsError {
    /// The file cannot be read, or is not PEM.
    #[error("{flag}: cannot read certificates from {}: {source}", path.display())]
    File {
        /// Flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        source: pem::Error,
    },
    /// The file has no certificate.
    #[error("{flag}: no certificate in {}: expected PEM", path.display())]
    None {
        /// Flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// No certificate of the file can be used.
    #[error("{flag}: no certificate in {} can be used; number {number}: {source}", path.display())]
    Unusable {
        /// Flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Number of the first certificate, counted from 1.
        number: usize,
        /// Reason why that certificate cannot be used.
        source: rustls::Error,
    },
    /// The TLS configuration cannot be used.
    #[error("the configuration of TLS cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

impl TrustedRoots {
    /// Reads the certificates in the `file` (PEM) of `flag`, which are then trusted in place of the public ones.
    /// Without a file, the public ones are trusted.
    ///
    /// # Errors
    /// If the file cannot be read, or holds no certificate that can be used. Certificates that cannot be used are
    /// skipped with a warning, because a system's bundle may hold some in an old format.
    pub fn of_flag(flag: &'static str, file: Option<&Path>) -> Result<Self, TrustedRootsError> {
        let Some(file) = file else { return Ok(Self { certificates: None, flag: Some(flag) }) };
        let path = file.to_owned();
        let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = match read {
            Ok(certificates) if certificates.is_empty() => return Err(TrustedRootsError::None { flag, path }),
            Ok(certificates) => certificates,
            Err(source) => return Err(TrustedRootsError::File { flag, path, source }),
        };
        // Checked here, where the file can be named, and not at the first connection.
        let certificates = usable(flag, path, certificates)?;
        Ok(Self { certificates: Some(certificates.into()), flag: Some(flag) })
    }

    fn store(&self) -> Result<RootCertStore, rustls::Error> {
        let Some(certificates) = &self.certificates else {
            return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
        };
        let mut store = RootCertStore::empty();
        for certificate in certificates.iter() {
            store.add(certificate.clone())?;
        }
        Ok(store)
    }

    /// Returns the configuration of TLS for a client that speaks HTTP/1.1.
    ///
    /// # Errors
    /// If a certificate cannot be used.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, TrustedRootsError> {
        // Chosen explicitly, because the default provider depends on the features that other crates enable.
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.store()?)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Returns the TLS configuration that trusts these roots, for a client of [`ureq`].
    pub fn ureq_config(&self) -> TlsConfig {
        let roots = match &self.certificates {
            None => RootCerts::WebPki,
            Some(certificates) => {
                let owned: Vec<_> = certificates.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
                RootCerts::new_with_certs(&owned)
            }
        };
        TlsConfig::builder().root_certs(roots).build()
    }

    /// Returns a client that trusts these roots and uses no proxy. Requests fail after `timeout`; error statuses and
    /// redirects are returned as responses.
    pub fn agent(&self, timeout: Duration) -> Agent {
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // A redirect could send a key or a token to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A proxy from the environment would see every text, and does not lead back to this machine.
            .proxy(None)
            .tls_config(self.ureq_config())
            .user_agent(concat!("waymark/", env!("CARGO_PKG_VERSION")));
        config.build().new_agent()
    }

    /// Explains why a TLS handshake failed. `None` if `error` is not one of TLS.
    pub fn explain(&self, error: &io::Error) -> Option<String> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match error {
            rustls::Error::InvalidCertificate(problem) => self.explain_certificate(problem),
            rustls::Error::InvalidMessage(_) => {
                "it does not speak TLS: write http:// if the network between is private".to_owned()
            }
            other => format!("the TLS handshake failed: {other}"),
        })
    }

    fn explain_certificate(&self, problem: &CertificateError) -> String {
        match problem {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired: renew it there, or check the clock of this machine".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet: check the clocks of both machines".to_owned()
            }
            CertificateError::UnknownIssuer => match self.flag {
                Some(flag) => format!("its certificate has an unknown issuer: give the issuer's certificate by {flag}"),
                None => "its certificate has an unknown issuer".to_owned(),
            },
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another host name than the one in the URL".to_owned()
            }
            other => format!("its certificate is not accepted: {other}"),
        }
    }
}

/// Returns the certificates of a file that can be used.
///
/// # Errors
/// If none can be used.
fn usable(
    flag: &'static str,
    path: PathBuf,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<Vec<CertificateDer<'static>>, TrustedRootsError> {
    let mut store = RootCertStore::empty();
    let mut kept = Vec::with_capacity(certificates.len());
    let mut first = None;
    for (at, certificate) in certificates.into_iter().enumerate() {
        let number = at + 1;
        match store.add(certificate.clone()) {
            Ok(()) => kept.push(certificate),
            Err(error) => {
                tracing::warn!(flag, file = %path.display(), number, %error, "a certificate cannot be used");
                first.get_or_insert((number, error));
            }
        }
    }
    match first {
        Some((number, source)) if kept.is_empty() => Err(TrustedRootsError::Unusable { flag, path, number, source }),
        _ => Ok(kept),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_without_certificates_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let said = |path: &Path| TrustedRoots::of_flag("--engine-ca", Some(path)).unwrap_err().to_string();
        assert!(said(&path).starts_with("--engine-ca: cannot read certificates from"), "{}", said(&path));
        std::fs::write(&path, "no PEM").unwrap();
        assert!(said(&path).contains("no certificate in"), "{}", said(&path));
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&path, damaged).unwrap();
        let refused = format!("--engine-ca: no certificate in {} can be used; number 1: ", path.display());
        assert!(said(&path).starts_with(&refused), "{}", said(&path));
        assert!(TrustedRoots::default().client_config().is_ok());
    }

    #[test]
    fn only_errors_of_tls_are_explained() {
        let tls = |error: rustls::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let unknown = tls(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer));
        let roots = TrustedRoots::of_flag("--engine-ca", None).unwrap();
        assert!(roots.explain(&unknown).unwrap().ends_with("by --engine-ca"));
        assert!(TrustedRoots::default().explain(&unknown).unwrap().ends_with("unknown issuer"));
        let expired = tls(rustls::Error::InvalidCertificate(CertificateError::Expired));
        assert!(roots.explain(&expired).unwrap().contains("expired"));
        assert_eq!(roots.explain(&io::Error::other("reset")), None);
    }
}
