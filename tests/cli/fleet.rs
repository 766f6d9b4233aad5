//! The loop in one process over the engine of another.

use serde_json::Value;

use super::program::{Serving, waymark};

/// Returns the text of all events of an answer, which may be cut into events anywhere.
fn told(url: &str) -> String {
    let run = waymark(&["ask", "--url", url, "--policy-name", "plain", "--seed", "3", "--json", "Who wrote Faust?"]);
    assert!(run.ok(), "{}", run.stderr);
    let events = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.map(|event| event["text"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn two_processes_answer_as_one_does() {
    let engine = Serving::start(&["--mock"]);
    let loops = Serving::start(&["--mock", "--engine", &format!("waymark={}", engine.url)]);
    let text = told(&engine.url);
    assert!(text.len() > 20, "{text}");
    assert_eq!(told(&loops.url), text);
    assert!(waymark(&["health", "--url", &loops.url]).ok());
    assert!(engine.stop());
    // The loop learns of it with the next request, and from then on is not ready.
    let failed = waymark(&["ask", "--url", &loops.url, "--policy-name", "plain", "Who wrote Faust?"]);
    assert!(!failed.ok(), "{}", failed.stdout);
    let health = waymark(&["health", "--url", &loops.url]);
    assert!(!health.ok() && health.stderr.contains("engine"), "{}", health.stderr);
    assert!(loops.stop());
}

#[test]
fn an_engine_that_cannot_be_used_is_named_at_the_start() {
    for (engine, reason) in [
        ("vllm=http://127.0.0.1:9", "no engine can be reached"),
        ("vllm=https://127.0.0.1:9", "no engine can be reached"),
        ("vllm=ftp://gpu:8000", "expected http:// or https:// and a host"),
        ("tgi=http://gpu:8000", "expected `vllm=http://host:8000`"),
    ] {
        let run = waymark(&["serve", "--mock", "--port", "0", "--engine", engine]);
        assert!(!run.ok() && run.stderr.contains(reason), "{engine}: {}", run.stderr);
    }
}

#[test]
fn an_engine_at_https_is_trusted_by_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let engine = Serving::start(&["--mock", "--tls-cert", &certificate, "--tls-key", &key]);
    let address = format!("waymark={}", engine.url);
    assert!(address.starts_with("waymark=https://"), "{address}");
    let loops = Serving::start(&["--mock", "--engine", &address, "--engine-ca", &certificate]);
    assert!(told(&loops.url).len() > 20);
    let refused = waymark(&["serve", "--mock", "--port", "0", "--engine", &address]);
    let told = &refused.stderr;
    assert!(!refused.ok() && told.contains("unknown issuer") && told.contains("--engine-ca"), "{told}");
}

#[test]
fn a_fingerprint_is_written_into_the_policys_file() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    std::fs::write(&policy, "name = \"mine\"\nprotocol = \"plain\" # kept\n").unwrap();
    let folder = dir.path().to_str().unwrap();
    let written = waymark(&["policy", "fingerprint", folder, "--mock"]);
    assert!(written.ok() && written.stdout.contains("wrote the fingerprint"), "{}{}", written.stdout, written.stderr);
    let text = std::fs::read_to_string(&policy).unwrap();
    assert!(text.starts_with("name = \"mine\"\nprotocol = \"plain\" # kept\n\n[fingerprint]\nids = ["), "{text}");
    // Measured again, it replaces the old one.
    assert!(waymark(&["policy", "fingerprint", folder, "--mock"]).ok());
    assert_eq!(std::fs::read_to_string(&policy).unwrap(), text);
    let printed = waymark(&["policy", "fingerprint", folder, "--mock", "--print"]);
    let printed: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(printed["ids"].as_array().unwrap().len(), printed["logprobs"].as_array().unwrap().len() + 1);
}
