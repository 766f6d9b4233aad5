//! Engines at `https://`: trusted certificates, and the errors for all others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use waymark_engine::{Health, TurnFinish};
use waymark_runtime::config::FleetConfig;

use super::stub::{Stub, StubFault};
use super::{config, connect, opened, refusal, run, spec, undisturbed};

/// A certificate authority, and the file of its certificate.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(dir: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let file = dir.join(format!("{name}.pem"));
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), file }
    }

    /// Issues a certificate for `host`, valid until the beginning of the year `until`.
    fn acceptor(&self, host: &str, until: i32) -> TlsAcceptor {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Arc::new(config).into()
    }
}

/// Configuration of an engine at `https://localhost`.
fn trusting(stub: &Stub, ca: Option<&Path>) -> FleetConfig {
    let url = format!("https://localhost:{}", stub.address.port());
    FleetConfig { ca: ca.map(Path::to_owned), ..config("vllm", &[&url]) }
}

#[tokio::test]
async fn an_engine_is_trusted_by_its_authority_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [own, other] = ["own", "other"].map(|name| Authority::new(dir.path(), name));
    let stub = Stub::encrypted(own.acceptor("localhost", 2999)).await;
    let fleet = connect(&trusting(&stub, Some(&own.file))).await.unwrap();
    let prompt: Vec<u32> = (0..40).collect();
    let mut session = opened(&fleet, &prompt);
    let turn = run(&mut session, spec(20)).await;
    assert_eq!((turn.error.clone(), turn.finish), (None, Some(TurnFinish::Length)));
    assert_eq!(turn.ids(), undisturbed(&prompt, 20));
    // Unreadable certificates of a bundle are skipped.
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bundle = dir.path().join("bundle.pem");
    std::fs::write(&bundle, format!("{damaged}{}", std::fs::read_to_string(&own.file).unwrap())).unwrap();
    assert!(connect(&trusting(&stub, Some(&bundle))).await.is_ok());
    for ca in [None, Some(other.file.as_path())] {
        let refused = refusal(&trusting(&stub, ca)).await;
        assert!(refused.contains("unknown issuer") && refused.contains("--engine-ca"), "{refused}");
        assert!(refused.contains("https://localhost"), "{refused}");
    }
    let missing = refusal(&trusting(&stub, Some(&dir.path().join("missing.pem")))).await;
    assert!(missing.contains("--engine-ca: cannot read certificates from"), "{missing}");
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let own = Authority::new(dir.path(), "own");
    for (host, until, reason) in
        [("localhost", 2021, "has expired"), ("elsewhere.example", 2999, "is for another host name")]
    {
        let stub = Stub::encrypted(own.acceptor(host, until)).await;
        let refused = refusal(&trusting(&stub, Some(&own.file))).await;
        assert!(refused.contains(reason), "{refused}");
    }
    let plain = Stub::start().await;
    let refused = refusal(&trusting(&plain, Some(&own.file))).await;
    assert!(refused.contains("does not speak TLS"), "{refused}");
}

#[tokio::test]
async fn a_certificate_that_is_replaced_by_a_wrong_one_takes_the_engine_out() {
    let dir = tempfile::tempdir().unwrap();
    let [own, other] = ["own", "other"].map(|name| Authority::new(dir.path(), name));
    let mut stub = Stub::encrypted(own.acceptor("localhost", 2999)).await;
    let fleet = connect(&trusting(&stub, Some(&own.file))).await.unwrap();
    stub.restart_with(other.acceptor("localhost", 2999)).await;
    let mut session = opened(&fleet, &[1, 2, 3]);
    let turn = run(&mut session, spec(4)).await;
    let message = turn.error.unwrap().to_string();
    assert!(message.contains("unknown issuer") && !message.contains("localhost"), "{message}");
    stub.restart_with(own.acceptor("localhost", 2999)).await;
    crate::harness::eventually("the engine is used again", || fleet.health() == Health::Ready).await;
    // The turn takes three connections, because the stub cuts the first two.
    stub.fail([StubFault::Cut(2), StubFault::Cut(3)]);
    let mut session = opened(&fleet, &[1, 2, 3]);
    let turn = run(&mut session, spec(12)).await;
    assert_eq!((turn.error.clone(), turn.ids()), (None, undisturbed(&[1, 2, 3], 12)));
    assert_eq!(turn.resumed.len(), 2);
}
