//! Faults that follow each other at random moments: signals, flipped bits, a full disk, floods of connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use crate::invariant::Invariant;
use crate::ledger::Ledger;
use crate::restart::{self, EndSignal};
use crate::run_shared::RunShared;
use crate::server::{ServerCommand, ServerProcess};
use crate::{bit_flip, flood, full_disk};

/// Random stream of these disturbances.
const STREAM: u64 = (1 << 32) + 2;

/// Share of the run at its end without these faults, so memory growth shows in one long process.
const CALM: f64 = 0.4;

/// Longest pause between two faults.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Kind of fault.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Signal(EndSignal),
    BitFlip,
    FullDisk,
    Flood,
}

/// Faults, all equally frequent.
const FAULTS: [Fault; 5] =
    [Fault::Signal(EndSignal::Term), Fault::Signal(EndSignal::Kill), Fault::BitFlip, Fault::FullDisk, Fault::Flood];

/// Paths that the faults need.
#[derive(Debug)]
pub(crate) struct FaultFiles {
    /// Served index.
    pub(crate) index: PathBuf,
    /// Folder for an undamaged copy of the index.
    pub(crate) copy: PathBuf,
    /// Disk that holds only the index. `None` if there is no such disk.
    pub(crate) disk: Option<PathBuf>,
}

/// Disturbs the server again and again. Returns the process that runs when the load is over.
pub(crate) async fn disturb(
    shared: Arc<RunShared>,
    ledger: Arc<Ledger>,
    files: FaultFiles,
    command: Arc<ServerCommand>,
    mut server: ServerProcess,
) -> anyhow::Result<ServerProcess> {
    let mut rng = ChaCha8Rng::seed_from_u64(shared.plan.seed);
    rng.set_stream(STREAM);
    let whole = shared.plan.time();
    let calm = Instant::now() + whole.mul_f64(1.0 - CALM);
    let mut round: Vec<Fault> = Vec::new();
    loop {
        let pause = whole.mul_f64(rng.random_range(0.01..0.03)).clamp(Duration::from_millis(500), LONGEST_PAUSE);
        if Instant::now() + pause >= calm {
            let _ = shared.pause(Duration::MAX).await;
            return Ok(server);
        }
        if !shared.pause(pause).await {
            return Ok(server);
        }
        let ended = || "the server ended without a signal".to_owned();
        shared.tally.check(Invariant::Processes, server.is_running().then_some(()).ok_or_else(ended));
        restart::check(&shared).await;
        if round.is_empty() {
            round = FAULTS.to_vec();
            round.shuffle(&mut rng);
        }
        match (round.pop(), &files.disk) {
            (Some(Fault::Signal(signal)), _) => {
                server = restart::replace_process(&shared, &command, server, signal).await?;
                ledger.verify(&shared, signal.name()).await;
            }
            (Some(Fault::BitFlip), _) => {
                bit_flip::disturb(&shared, &ledger, &files.index, &files.copy, &mut rng).await;
            }
            (Some(Fault::FullDisk), Some(disk)) => full_disk::disturb(&shared, &ledger, disk, &mut rng).await,
            (Some(Fault::Flood), _) => flood::disturb(&shared, &mut rng).await,
            (Some(Fault::FullDisk), None) | (None, _) => {}
        }
    }
}
