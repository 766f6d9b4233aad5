//! Signals: those that stop the server, and SIGHUP, which reloads its files.

use std::future::Future;

/// Completes at the first SIGTERM or Ctrl-C. A second one exits the process at once, with the status that shells
/// expect.
///
/// Signals are caught from this call on, not from the first poll of the future: call this function before announcing
/// that the server is up.
pub fn stop_signal() -> impl Future<Output = ()> + Send + 'static {
    let mut signals = Signals::catch();
    async move {
        let first = signals.next().await;
        tracing::info!(signal = first.name, "shutting down");
        tokio::spawn(async move {
            let second = signals.next().await;
            // Shells report a process killed by signal n with the status 128 + n.
            std::process::exit(128 + second.number);
        });
    }
}

/// Stream of hang-up signals (SIGHUP). While a value exists, a hang-up does not end the process.
#[derive(Debug)]
pub struct Hangups(Caught);

impl Hangups {
    /// Starts to catch hang-ups.
    pub fn catch() -> Self {
        Self(Caught::hangups())
    }

    /// Waits for the next hang-up. Never returns on systems without SIGHUP.
    pub async fn next(&mut self) {
        self.0.came().await;
    }
}

struct Signal {
    name: &'static str,
    number: i32,
}

const INTERRUPT: Signal = Signal { name: "interrupt", number: 2 };

#[cfg(unix)]
mod unix {
    use super::{INTERRUPT, Signal};
    use tokio::signal::unix::{self, SignalKind};

    /// Signals that stop the server. One that cannot be caught never arrives, and the server runs until it is killed.
    pub(super) struct Signals {
        interrupt: Option<unix::Signal>,
        terminate: Option<unix::Signal>,
    }

    impl Signals {
        pub(super) fn catch() -> Self {
            let catch =
                |kind| unix::signal(kind).inspect_err(|error| tracing::error!(%error, "cannot catch a signal")).ok();
            Self { interrupt: catch(SignalKind::interrupt()), terminate: catch(SignalKind::terminate()) }
        }

        pub(super) async fn next(&mut self) -> Signal {
            tokio::select! {
                () = came(&mut self.interrupt) => INTERRUPT,
                () = came(&mut self.terminate) => Signal { name: "terminate", number: 15 },
            }
        }
    }

    /// One kind of signal.
    #[derive(Debug)]
    pub(super) struct Caught(Option<unix::Signal>);

    impl Caught {
        pub(super) fn hangups() -> Self {
            let hangups = unix::signal(SignalKind::hangup());
            Self(hangups.inspect_err(|error| tracing::error!(%error, "cannot catch a signal")).ok())
        }

        pub(super) async fn came(&mut self) {
            came(&mut self.0).await;
        }
    }

    async fn came(signal: &mut Option<unix::Signal>) {
        let caught = match signal {
            Some(signal) => signal.recv().await,
            None => None,
        };
        if caught.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(unix)]
use unix::{Caught, Signals};

#[cfg(not(unix))]
#[derive(Debug)]
struct Caught;

#[cfg(not(unix))]
impl Caught {
    fn hangups() -> Self {
        Self
    }

    async fn came(&mut self) {
        std::future::pending::<()>().await;
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn catch() -> Self {
        Self
    }

    async fn next(&mut self) -> Signal {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::error!(%error, "cannot catch Ctrl-C");
            std::future::pending::<()>().await;
        }
        INTERRUPT
    }
}
