//! More connections than the server may open files for: idle ones, and ones that send a request head byte by byte.

use std::net::Ipv4Addr;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::run_shared::{Disturbance, RunShared};
use crate::server::FILES;

/// Address of the flooding client; all other clients use another address.
const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Bytes that slow heads send one by one.
const HEAD: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-slow: ";

/// Time in which the server notices that the connections were closed.
const SETTLING: Duration = Duration::from_millis(1500);

/// Holds connections for some seconds.
pub(crate) async fn disturb(shared: &RunShared, rng: &mut ChaCha8Rng) {
    shared.begin(Disturbance::Flood);
    let target = shared.operator();
    let mut connections: Vec<TcpStream> = Vec::new();
    for _ in 0..FILES + 100 {
        // The backlog of the server may be full.
        let connecting = tokio::time::timeout(Duration::from_secs(1), target.connect_from(SOURCE));
        if let Ok(Ok(connection)) = connecting.await {
            connections.push(connection);
        }
    }
    shared.tally.count("connections of floods", connections.len() as u64);
    let end = Instant::now() + Duration::from_millis(rng.random_range(2000..5000));
    let mut sent = 0;
    while Instant::now() < end {
        // Every other connection stays idle.
        for connection in connections.iter_mut().step_by(2) {
            let byte = HEAD.get(sent).copied().unwrap_or(b'x');
            // The server may have closed it.
            let _ = connection.write_all(&[byte]).await;
        }
        sent += 1;
        sleep(Duration::from_millis(100)).await;
    }
    drop(connections);
    sleep(SETTLING).await;
    shared.finish(Disturbance::Flood);
    shared.tally.count("floods of connections", 1);
}
