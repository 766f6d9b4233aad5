//! SIGTERM at random moments, and another life after each.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep};

use crate::pulse::Pulse;
use crate::server::{Server, Start};
use crate::swap;
use crate::wire::ask;

/// The random stream of these disturbances.
const STREAM: u64 = (1 << 32) + 2;

/// The last part of a run has one long life, over which growth of memory shows best.
const CALM: f64 = 0.4;

/// Ends the server again and again; gives back the one that lives when the load is over.
pub(crate) async fn disturb(pulse: Arc<Pulse>, start: Arc<Start>, mut server: Server) -> anyhow::Result<Server> {
    let mut rng = ChaCha8Rng::seed_from_u64(pulse.plan.seed);
    rng.set_stream(STREAM);
    let whole = pulse.plan.time();
    let calm = Instant::now() + whole.mul_f64(1.0 - CALM);
    loop {
        let life = whole.mul_f64(rng.random_range(0.04..0.16)).max(Duration::from_secs(4));
        if Instant::now() + life >= calm {
            let _ = pulse.pause(Duration::MAX).await;
            return Ok(server);
        }
        if !pulse.pause(life).await {
            return Ok(server);
        }
        if !server.lives() {
            pulse.tally.broken("the server ended by itself".into());
        }
        check(&pulse).await;
        server = succeed(&pulse, &start, server).await?;
    }
}

/// Ends one life and begins the next.
async fn succeed(pulse: &Pulse, start: &Start, server: Server) -> anyhow::Result<Server> {
    let port = server.address.port();
    pulse.falls();
    pulse.tally.with(|counts| counts.terms += 1);
    if let Err(error) = server.terminate().await {
        pulse.tally.broken(error.to_string());
    }
    let server = start.go(port).await?;
    while !matches!(ask(pulse.address, "GET", "/ready", "").await, Ok((200, _))) {
        sleep(Duration::from_millis(20)).await;
    }
    swap::load(pulse, "one").await;
    pulse.rises(server.pid());
    Ok(server)
}

/// The accounting of the life that is about to end.
pub(crate) async fn check(pulse: &Pulse) {
    match ask(pulse.address, "GET", "/metrics", "").await {
        Ok((200, metrics)) if !metrics.lines().any(|line| line == "waymark_invariant_violations_total 0") => {
            pulse.tally.broken("waymark_invariant_violations_total is not 0".into());
        }
        Ok((200, _)) => {}
        other => pulse.tally.broken(format!("/metrics gave {other:?}")),
    }
}
