//! Execution of a run.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use waymark_runtime::logging::PANIC;

use crate::director::{self, FaultFiles};
use crate::http_client::fetch;
use crate::invariant::Invariant;
use crate::ledger::Ledger;
use crate::memory::{self, MemoryLog};
use crate::plan::ChaosPlan;
use crate::report::ChaosReport;
use crate::restart::{self, EndSignal};
use crate::run_shared::RunShared;
use crate::server::ServerCommand;
use crate::server_files::ServerFiles;
use crate::{client, fair_load, index_changes, oversized, policy_swap, probes, small_disk};

/// Time for the server to become idle after the last request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Executes `plan`.
pub(crate) async fn run(plan: ChaosPlan) -> anyhow::Result<()> {
    let folder = TempFolder::new()?;
    let log = plan.log.clone().unwrap_or_else(|| folder.0.join("server.log"));
    // Truncates an existing log, because panics of an earlier run would be counted.
    std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let built = plan.clone();
    let root = folder.0.clone();
    let disk = small_disk::mounted(plan.inside_namespace);
    let index_disk = disk.clone();
    let built = tokio::task::spawn_blocking(move || ServerFiles::build(&built, root, index_disk));
    let (files, keys) = built.await??;
    let command = Arc::new(ServerCommand::new(&plan, &files, log.clone()));
    let server = command.start(0).await?;
    writeln!(io::stderr(), "the server is at http://{}, its log in {}", server.address, log.display())?;
    let shared = RunShared::new(plan.clone(), server.address, keys, server.pid());
    policy_swap::load(&shared, "one").await;
    let requests = (plan.time().as_secs() as usize / 3).clamp(5, 100);
    fair_load::measure_alone(&shared, requests).await;

    let begun = Instant::now();
    let measured: Arc<Mutex<MemoryLog>> = Arc::default();
    let watch = memory::watch(Arc::clone(&shared), Arc::clone(&measured));
    let ledger = Ledger::new();
    let tasks = start_load(&shared, &ledger);
    let fault_files = FaultFiles { index: files.index(), copy: files.copy(), disk };
    let faults = director::disturb(Arc::clone(&shared), Arc::clone(&ledger), fault_files, Arc::clone(&command), server);
    let faults = tokio::spawn(faults);
    sleep(plan.time()).await;
    shared.end();
    for task in tasks {
        task.await.context("a task of the run panicked")?;
    }
    let server = faults.await.context("a task of the run panicked")??;
    watch.abort();
    let seconds = begun.elapsed().as_secs_f64();
    wait_until_idle(&shared).await;
    client::ask_each_kind(&shared).await;
    index_changes::change_once(&shared).await;
    restart::check(&shared).await;
    ledger.verify(&shared, "the load").await;
    restart::end_process(&shared, server, EndSignal::Term).await;
    let measured = measured.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let lines = std::fs::read_to_string(&log).with_context(|| format!("cannot read the log {}", log.display()))?;
    let panics = lines.matches(&format!("\"message\":\"{PANIC}\"")).count();
    let report = ChaosReport::new(&plan, &shared.tally.counts(), &measured, seconds, panics);
    report.print(plan.report.as_deref())?;
    if report.passed() { Ok(()) } else { bail!("guarantees were broken: see the report above") }
}

/// Starts the clients and the other tasks that run throughout the load.
fn start_load(shared: &Arc<RunShared>, ledger: &Arc<Ledger>) -> Vec<JoinHandle<()>> {
    let plan = &shared.plan;
    let clients = (0..plan.clients as u64).map(|number| tokio::spawn(client::live(Arc::clone(shared), number)));
    let greedy =
        (0..plan.greedy_clients as u64).map(|number| tokio::spawn(fair_load::greedy(Arc::clone(shared), number)));
    let others = [
        tokio::spawn(fair_load::measure_under_load(Arc::clone(shared))),
        tokio::spawn(index_changes::disturb(Arc::clone(shared))),
        tokio::spawn(policy_swap::disturb(Arc::clone(shared))),
        tokio::spawn(Arc::clone(ledger).write(Arc::clone(shared))),
        tokio::spawn(oversized::disturb(Arc::clone(shared))),
        tokio::spawn(probes::watch(Arc::clone(shared))),
    ];
    clients.chain(greedy).chain(others).collect()
}

/// Checks that the server holds no resources after the last client has gone.
async fn wait_until_idle(shared: &RunShared) {
    let deadline = Instant::now() + IDLE_TIMEOUT;
    loop {
        match held_resources(shared).await {
            Ok(None) => return shared.tally.held(Invariant::Idle),
            Ok(Some(what)) | Err(what) if Instant::now() >= deadline => {
                return shared.tally.broken(Invariant::Idle, &what);
            }
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Describes the resources that the server still holds. `None` if it holds none.
async fn held_resources(shared: &RunShared) -> Result<Option<String>, String> {
    let (status, body) =
        fetch(&shared.operator(), "GET", "/debug/state", "").await.map_err(|error| format!("/debug/state: {error}"))?;
    let state: Value = serde_json::from_str(&body).map_err(|error| format!("/debug/state: {status} {error}"))?;
    let sessions = state["sessions"].as_array().map_or(usize::MAX, Vec::len);
    let used = &state["blocks"]["used"];
    let requests = &state["requests"];
    let replaced = |adapter: &&Value| adapter["policy"].is_null();
    let adapters = state["adapters"].as_array().map_or(usize::MAX, |adapters| adapters.iter().filter(replaced).count());
    let empty = sessions == 0 && *used == 0 && *requests == 0 && adapters == 0;
    Ok((!empty).then(|| {
        format!(
            "after the load the server holds {sessions} sessions, {used} blocks, {requests} requests, {adapters} adapters \
             that were replaced"
        )
    }))
}

/// A temporary folder, deleted on drop.
struct TempFolder(std::path::PathBuf);

impl TempFolder {
    fn new() -> anyhow::Result<TempFolder> {
        let name = format!("waymark-chaos-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(TempFolder(path))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // Files that cannot be removed stay in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
