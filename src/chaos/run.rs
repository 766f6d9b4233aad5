//! A run from its beginning to its end.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::house::House;
use crate::memory::{self, Looks};
use crate::plan::Plan;
use crate::pulse::Pulse;
use crate::report::Report;
use crate::server::{Server, Start};
use crate::wire::ask;
use crate::{client, commit, restart, swap};

/// What the server gets to come to rest once nobody asks any more.
const REST: Duration = Duration::from_secs(20);

/// Carries `plan` out.
pub(crate) async fn run(plan: Plan) -> anyhow::Result<()> {
    let folder = Folder::new()?;
    let log = plan.log.clone().unwrap_or_else(|| folder.0.join("server.log"));
    // What an earlier run wrote there is not of this one: its panics would count.
    std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let (built, root) = (plan.clone(), folder.0.clone());
    let house = tokio::task::spawn_blocking(move || House::build(&built, root)).await??;
    let start = Arc::new(Start::new(&plan, &house, log.clone()));
    let server = start.go(0).await?;
    writeln!(io::stderr(), "the server is at http://{}, its log in {}", server.address, log.display())?;
    let pulse = Pulse::new(plan.clone(), server.address, server.pid());
    swap::load(&pulse, "one").await;

    let begun = Instant::now();
    let looks: Arc<Mutex<Looks>> = Arc::default();
    let watch = memory::watch(Arc::clone(&pulse), Arc::clone(&looks));
    let clients: Vec<_> =
        (0..plan.clients as u64).map(|number| tokio::spawn(client::live(Arc::clone(&pulse), number))).collect();
    let changes = [tokio::spawn(commit::disturb(Arc::clone(&pulse))), tokio::spawn(swap::disturb(Arc::clone(&pulse)))];
    let restarts = tokio::spawn(restart::disturb(Arc::clone(&pulse), Arc::clone(&start), server));
    sleep(plan.time()).await;
    pulse.end();
    for task in clients.into_iter().chain(changes) {
        task.await.context("a task of the run panicked")?;
    }
    let server = restarts.await.context("a task of the run panicked")??;
    watch.abort();
    let seconds = begun.elapsed().as_secs_f64();
    settle(&pulse).await;
    restart::check(&pulse).await;
    leave(&pulse, server).await;
    let looks = looks.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let panics = std::fs::read_to_string(&log).unwrap_or_default().matches("\"message\":\"panic\"").count();
    let report = Report::new(&plan, &pulse.tally.counts(), &looks, seconds, panics);
    report.print(plan.report.as_deref())?;
    if report.kept() { Ok(()) } else { bail!("promises were broken: see above") }
}

/// After the last client has gone nothing may be held for anybody.
async fn settle(pulse: &Pulse) {
    let deadline = Instant::now() + REST;
    loop {
        let held = held(pulse).await;
        match held {
            Ok(None) => return,
            Ok(Some(what)) | Err(what) if Instant::now() >= deadline => return pulse.tally.broken(what),
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// What the server still holds, in words.
async fn held(pulse: &Pulse) -> Result<Option<String>, String> {
    let (status, body) =
        ask(pulse.address, "GET", "/debug/state", "").await.map_err(|error| format!("/debug/state: {error}"))?;
    let state: Value = serde_json::from_str(&body).map_err(|error| format!("/debug/state: {status} {error}"))?;
    let sessions = state["sessions"].as_array().map_or(usize::MAX, Vec::len);
    let (used, requests) = (&state["blocks"]["used"], &state["requests"]);
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

/// The last life ends as all do.
async fn leave(pulse: &Pulse, server: Server) {
    pulse.tally.with(|counts| counts.terms += 1);
    if let Err(error) = server.terminate().await {
        pulse.tally.broken(error.to_string());
    }
}

/// A folder that goes with its owner.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Folder> {
        let name = format!("waymark-chaos-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays, where temporary things are expected to lie.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
