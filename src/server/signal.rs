//! The signals that stop a server.

/// Completes at the first SIGTERM or ctrl-c. A second one ends the process at once, with the status shells expect.
pub async fn stop_signal() {
    let first = next().await;
    tracing::info!(signal = first.name, "shutting down");
    tokio::spawn(async {
        let second = next().await;
        std::process::exit(128 + second.number);
    });
}

struct Signal {
    name: &'static str,
    number: i32,
}

const INTERRUPT: Signal = Signal { name: "interrupt", number: 2 };

#[cfg(unix)]
async fn next() -> Signal {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => Signal { name: "terminate", number: 15 },
            signal = interrupt() => signal,
        },
        Err(error) => {
            tracing::error!(%error, "SIGTERM cannot be caught");
            interrupt().await
        }
    }
}

#[cfg(not(unix))]
async fn next() -> Signal {
    interrupt().await
}

async fn interrupt() -> Signal {
    if let Err(error) = tokio::signal::ctrl_c().await {
        // Without a way to be told, the server runs until it is killed.
        tracing::error!(%error, "ctrl-c cannot be caught");
        std::future::pending::<()>().await;
    }
    INTERRUPT
}
