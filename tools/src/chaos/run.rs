//! Execution of a run.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::http_client::fetch;
use crate::memory::{self, MemoryLog};
use crate::plan::ChaosPlan;
use crate::report::ChaosReport;
use crate::run_shared::RunShared;
use crate::server::{ServerCommand, ServerProcess};
use crate::server_files::ServerFiles;
use crate::{client, index_changes, policy_swap, restart};

/// Time for the server to become idle after the last request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Executes `plan`.
pub(crate) async fn run(plan: ChaosPlan) -> anyhow::Result<()> {
    let folder = TempFolder::new()?;
    let log = plan.log.clone().unwrap_or_else(|| folder.0.join("server.log"));
    // Truncates the log of an earlier run, whose panics would be counted.
    std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let built = plan.clone();
    let root = folder.0.clone();
    let files = tokio::task::spawn_blocking(move || ServerFiles::build(&built, root)).await??;
    let command = Arc::new(ServerCommand::new(&plan, &files, log.clone()));
    let server = command.start(0).await?;
    writeln!(io::stderr(), "the server is at http://{}, its log in {}", server.address, log.display())?;
    let shared = RunShared::new(plan.clone(), server.address, server.pid());
    policy_swap::load(&shared, "one").await;

    let begun = Instant::now();
    let measured: Arc<Mutex<MemoryLog>> = Arc::default();
    let watch = memory::watch(Arc::clone(&shared), Arc::clone(&measured));
    let clients: Vec<_> =
        (0..plan.clients as u64).map(|number| tokio::spawn(client::live(Arc::clone(&shared), number))).collect();
    let changes = [
        tokio::spawn(index_changes::disturb(Arc::clone(&shared))),
        tokio::spawn(policy_swap::disturb(Arc::clone(&shared))),
    ];
    let restarts = tokio::spawn(restart::disturb(Arc::clone(&shared), Arc::clone(&command), server));
    sleep(plan.time()).await;
    shared.end();
    for task in clients.into_iter().chain(changes) {
        task.await.context("a task of the run panicked")?;
    }
    let server = restarts.await.context("a task of the run panicked")??;
    watch.abort();
    let seconds = begun.elapsed().as_secs_f64();
    wait_until_idle(&shared).await;
    restart::check(&shared).await;
    stop_server(&shared, server).await;
    let measured = measured.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let panics = std::fs::read_to_string(&log).unwrap_or_default().matches("\"message\":\"panic\"").count();
    let report = ChaosReport::new(&plan, &shared.tally.counts(), &measured, seconds, panics);
    report.print(plan.report.as_deref())?;
    if report.passed() { Ok(()) } else { bail!("guarantees were broken: see the report above") }
}

/// Checks that the server holds no resources after the last client has gone.
async fn wait_until_idle(shared: &RunShared) {
    let deadline = Instant::now() + IDLE_TIMEOUT;
    loop {
        match held_resources(shared).await {
            Ok(None) => return,
            Ok(Some(what)) | Err(what) if Instant::now() >= deadline => return shared.tally.broken(what),
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Describes the resources that the server still holds. `None` if it holds none.
async fn held_resources(shared: &RunShared) -> Result<Option<String>, String> {
    let (status, body) =
        fetch(shared.address, "GET", "/debug/state", "").await.map_err(|error| format!("/debug/state: {error}"))?;
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

/// Ends the last process.
async fn stop_server(shared: &RunShared, server: ServerProcess) {
    shared.tally.with(|counts| counts.terms += 1);
    if let Err(error) = server.terminate().await {
        shared.tally.broken(error.to_string());
    }
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
