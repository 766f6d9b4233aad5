//! Ledger of acknowledged writes: each must be found after any fault.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::http_client::{Target, fetch};
use crate::index_changes::judge;
use crate::invariant::Invariant;
use crate::run_shared::{Disturbance, RunShared};

/// Random stream of the writer.
const STREAM: u64 = (1 << 32) + 3;

/// Number of documents in the ledger.
const DOCUMENTS: usize = 48;

/// Longest time until an accepted change is committed, and until it is visible after a fault.
const VISIBLE: Duration = Duration::from_secs(20);

/// Version of a document. `None` if it was removed or never written.
type Version = Option<u64>;

/// Documents of one writer, each with its acknowledged version.
#[derive(Debug)]
pub(crate) struct Ledger(Vec<Mutex<LedgerEntry>>);

#[derive(Debug, Default)]
struct LedgerEntry {
    acknowledged: Version,
    /// Versions sent later without a known outcome, for example because the connection broke off.
    uncertain: Vec<Version>,
}

impl Ledger {
    pub(crate) fn new() -> Arc<Ledger> {
        Arc::new(Ledger((0..DOCUMENTS).map(|_| Mutex::default()).collect()))
    }

    /// Writes documents until the load is over.
    pub(crate) async fn write(self: Arc<Ledger>, shared: Arc<RunShared>) {
        let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
        rng.set_stream(STREAM);
        let target = shared.operator();
        let mut number = 0;
        while shared.pause(Duration::from_millis(rng.random_range(50..400))).await {
            number += 1;
            let document = rng.random_range(0..DOCUMENTS);
            let version = (rng.random_range(0..10) > 0).then_some(number);
            let wait = rng.random_range(0..10) < 7;
            let mut entry = self.0[document].lock().await;
            write_one(&shared, &target, document, &mut entry, (version, wait)).await;
        }
    }

    /// Reads all documents and checks that each has its acknowledged version, or one whose outcome is unknown. Accepted
    /// changes get some time to become visible.
    pub(crate) async fn verify(&self, shared: &RunShared, after: &str) {
        let target = shared.operator();
        let deadline = Instant::now() + VISIBLE;
        for (document, entry) in self.0.iter().enumerate() {
            let entry = entry.lock().await;
            let mut found = read(&target, document).await;
            let expected = |found: &Result<Version, String>| match found {
                Ok(found) => *found == entry.acknowledged || entry.uncertain.contains(found),
                Err(_) => false,
            };
            while !expected(&found) && Instant::now() < deadline {
                sleep(Duration::from_millis(100)).await;
                found = read(&target, document).await;
            }
            let LedgerEntry { acknowledged, uncertain } = &*entry;
            let wrong = || {
                format!(
                    "after {after}: document {document}: acknowledged {acknowledged:?}, perhaps {uncertain:?}, found {found:?}"
                )
            };
            shared.tally.check(Invariant::Acknowledged, expected(&found).then_some(()).ok_or_else(wrong));
        }
    }
}

/// Writes or removes a document, and notes what the server acknowledged.
async fn write_one(
    shared: &RunShared,
    target: &Target,
    document: usize,
    entry: &mut LedgerEntry,
    (version, wait): (Version, bool),
) {
    let since = Instant::now();
    let id = format!("ledger{document}");
    let body = match version {
        Some(number) => {
            let text = format!("Entry {document} of the ledger has version {number}.");
            json!({"documents": [{"id": id, "title": format!("Ledger {document}"), "text": text}], "wait": wait})
        }
        None => json!({"documents": [], "delete": [id], "wait": wait}),
    };
    // The outcome is unknown from the moment the request is sent.
    entry.uncertain.push(version);
    let made = fetch(target, "POST", "/v1/documents", &body.to_string()).await;
    shared.tally.check(Invariant::Changes, judge(shared, since, &made).map_err(|what| format!("ledger: {what}")));
    let before = entry.acknowledged;
    match made {
        Ok((200, _)) => {
            shared.tally.count("acknowledged writes", 1);
            *entry = LedgerEntry { acknowledged: version, uncertain: Vec::new() };
        }
        Ok((202, accepted)) => {
            shared.tally.count("writes acknowledged before their commit", 1);
            *entry = LedgerEntry { acknowledged: version, uncertain: Vec::new() };
            if let Some(failure) = follow(shared, target, &accepted).await {
                // The server reported the failure, so the write no longer counts as acknowledged.
                *entry = LedgerEntry { acknowledged: before, uncertain: vec![version] };
                let expected = shared.was(Disturbance::FullDisk, since) || shared.was(Disturbance::Damaged, since);
                shared.tally.check(Invariant::Changes, expected.then_some(()).ok_or(failure));
            }
        }
        _ => {}
    }
}

/// Waits until an accepted change or the process ends, for at most [`VISIBLE`]. Returns the error if the change failed.
async fn follow(shared: &RunShared, target: &Target, accepted: &str) -> Option<String> {
    let accepted: Value = serde_json::from_str(accepted).unwrap_or_default();
    let path = format!("/v1/commits/{}", accepted["id"].as_str().unwrap_or_default());
    let since = Instant::now();
    while since.elapsed() < VISIBLE && !shared.was(Disturbance::Down, since) {
        if let Ok((200, status)) = fetch(target, "GET", &path, "").await {
            let status: Value = serde_json::from_str(&status).unwrap_or_default();
            match status["status"].as_str() {
                Some("failed") => return Some(format!("an accepted change failed: {status}")),
                Some("done") => return None,
                _ => {}
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    None
}

/// Reads the version of a document.
async fn read(target: &Target, document: usize) -> Result<Version, String> {
    let path = format!("/v1/documents/ledger{document}");
    match fetch(target, "GET", &path, "").await {
        Ok((404, _)) => Ok(None),
        Ok((200, body)) => {
            let body: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
            let text = body["document"]["text"].as_str().unwrap_or_default();
            let number = text.strip_suffix('.').and_then(|text| text.rsplit(' ').next()?.parse().ok());
            number.map(Some).ok_or_else(|| format!("the text {text:?}"))
        }
        Ok((status, body)) => Err(format!("{status} {body}")),
        Err(error) => Err(error.to_string()),
    }
}
