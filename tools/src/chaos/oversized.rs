//! Oversized requests: a large announced body, a large chunked body, or a large head.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, timeout};

use crate::http_client::{RawConnection, Target};
use crate::invariant::Invariant;
use crate::run_shared::RunShared;

/// Stream of the random generator for oversized requests.
const STREAM: u64 = (1 << 32) + 4;

/// Maximum time until the server must refuse an oversized request.
const REFUSED: Duration = Duration::from_secs(20);

/// Sends requests that are too large until the load is over.
pub(crate) async fn disturb(shared: Arc<RunShared>) {
    let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
    rng.set_stream(STREAM);
    let target = shared.operator();
    while shared.pause(Duration::from_millis(rng.random_range(200..1200))).await {
        let since = Instant::now();
        let (what, bytes) = request(&target, rng.random_range(0..3));
        let answer = timeout(REFUSED, status(&target, &bytes)).await;
        shared.tally.count("oversized requests", 1);
        if shared.was_out_of_reach(since) {
            continue;
        }
        // A server that refuses while the client still sends may reset the connection before the answer is read.
        let refused = matches!(answer, Ok(None | Some(400 | 413 | 431 | 503)));
        let failed = || format!("{what}: {answer:?}");
        shared.tally.check(Invariant::Oversized, refused.then_some(()).ok_or_else(failed));
    }
}

fn request(target: &Target, kind: u32) -> (&'static str, Vec<u8>) {
    let path = "/v1/chat/completions";
    match kind {
        0 => ("a body of 1 GiB that is announced", target.head("POST", path, 1 << 30).into_bytes()),
        1 => {
            let head = target.head("POST", path, 0).replace("content-length: 0", "transfer-encoding: chunked");
            let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
            ("a body of 4 MiB in chunks", (head + &chunk.repeat(64) + "0\r\n\r\n").into_bytes())
        }
        _ => {
            let head = target.head("GET", "/v1/models", 0);
            let long = format!("x-long: {}\r\n\r\n", "x".repeat(1 << 20));
            ("a head of 1 MiB", head.replacen("\r\n\r\n", &format!("\r\n{long}"), 1).into_bytes())
        }
    }
}

/// Sends a request and returns the status of its response. `None` if the connection failed or ended before a status.
async fn status(target: &Target, bytes: &[u8]) -> Option<u16> {
    let mut connection = RawConnection::send_bytes(target, bytes).await.ok()?;
    while connection.status().is_none() && connection.read(256).await.ok()? > 0 {}
    connection.status()
}
