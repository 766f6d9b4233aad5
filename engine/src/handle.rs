//! The engine's handle.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use waymark_models::tokenizer::TokenBytes;
use waymark_models::weights::Weights;

use super::backend::{Backend, BackendSpec};
use super::command::{EngineCommand, Permit};
use super::config::EngineConfig;
use super::core::Core;
use super::counters::Counters;
use super::error::EngineError;
use super::health::{Health, StopFlag};
use super::request::{LoadedAdapter, SessionOptions};
use super::session::Session;
use super::snapshot::EngineSnapshot;
use super::worker;

/// A handle to a running engine. Clones share the engine; its thread ends with the last handle and the last session.
#[derive(Debug, Clone)]
pub struct Engine(pub(super) Arc<EngineShared>);

/// State shared by the handles and the thread.
#[derive(Debug)]
pub(super) struct EngineShared {
    pub(super) spec: BackendSpec,
    overlaps: bool,
    pub(super) config: EngineConfig,
    pub(super) counters: Arc<Counters>,
    pub(super) stop_flag: Arc<StopFlag>,
    commands: mpsc::Sender<EngineCommand>,
    sessions: AtomicU64,
    waiting: Arc<AtomicUsize>,
}

impl EngineShared {
    /// Sends a command. Errors are ignored: a thread that has ended has already failed every session.
    pub(super) fn send(&self, command: EngineCommand) {
        let _ = self.commands.send(command);
    }

    pub(super) fn permit(&self) -> Result<Permit, EngineError> {
        let limit = self.config.max_waiting;
        Permit::take(&self.waiting, limit).ok_or(EngineError::QueueFull { limit })
    }

    /// Returns the number of the next session.
    pub(super) fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Relaxed)
    }

    /// Returns an error once the thread has stopped.
    pub(super) fn alive(&self) -> Result<(), EngineError> {
        self.stop_flag.stopped().map_or(Ok(()), |reason| Err(EngineError::Dead(reason.to_owned())))
    }

    /// Returns the longest sequence that can be held, in tokens.
    pub(super) fn limit(&self) -> usize {
        self.spec.limit()
    }
}

impl Engine {
    /// Starts the thread that owns `backend`. `bytes` are the raw bytes of its vocabulary, in which stop strings are
    /// searched.
    ///
    /// # Errors
    /// [`EngineError::Request`] for settings under which no session could run, [`EngineError::Dead`] when the operating
    /// system refuses a thread.
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig, bytes: Arc<TokenBytes>) -> Result<Self, EngineError> {
        config.check()?;
        let spec = backend.spec().clone();
        // A prompt of one token needs room for at least one more.
        if spec.limit() < 2 {
            return Err(EngineError::Request(format!(
                "a pool of {} KV blocks is too small to generate a token: increase it",
                spec.blocks
            )));
        }
        let overlaps = backend.overlaps();
        let (commands, inbox) = mpsc::channel();
        let counters = Arc::new(Counters::default());
        let stop_flag = Arc::new(StopFlag::default());
        let core = Core::new(backend, &config, bytes, counters.clone(), stop_flag.clone());
        worker::spawn(core, stop_flag.clone(), inbox)?;
        let sessions = AtomicU64::new(0);
        let waiting = Arc::default();
        let shared = EngineShared { spec, overlaps, config, counters, stop_flag, commands, sessions, waiting };
        Ok(Self(Arc::new(shared)))
    }

    /// Creates an empty session. The engine learns of the session with its first turn.
    pub fn session(&self, options: SessionOptions) -> Session {
        Session::new(self.0.clone(), self.0.next_session(), options)
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Returns the health of the engine.
    pub fn health(&self) -> Health {
        self.0.stop_flag.health()
    }

    /// Returns the properties of the backend.
    pub fn spec(&self) -> &BackendSpec {
        &self.0.spec
    }

    /// Returns `true` if the backend computes asynchronously, as a GPU does.
    pub fn overlaps(&self) -> bool {
        self.0.overlaps
    }

    /// Returns the settings.
    pub fn config(&self) -> &EngineConfig {
        &self.0.config
    }

    /// Returns the longest sequence of a session, in tokens: the model's context length or the whole KV pool.
    pub fn limit(&self) -> usize {
        self.0.limit()
    }

    /// Loads a PEFT adapter between two steps. If the future is dropped, the adapter is unloaded again.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] when the adapter does not fit the model, [`EngineError::Dead`] after the engine has
    /// stopped.
    pub async fn load_adapter(&self, dir: PathBuf) -> Result<LoadedAdapter, EngineError> {
        self.0.alive()?;
        let (reply, answer) = oneshot::channel();
        // From here on, dropping the future unloads the adapter.
        let mut coming = PendingAdapter { answer, engine: self };
        self.0.send(EngineCommand::LoadAdapter { dir, reply });
        let stopped = || EngineError::Dead("it was shut down while loading an adapter".into());
        (&mut coming.answer).await.unwrap_or_else(|_| Err(self.0.alive().err().unwrap_or_else(stopped)))
    }

    /// Unloads an adapter once the last session that uses it is closed. New turns with it are refused at once.
    pub fn unload_adapter(&self, adapter: LoadedAdapter) {
        self.0.send(EngineCommand::UnloadAdapter(adapter));
    }

    /// Replaces the weights of an engine without sessions by others of the same shape, as a trainer does between two
    /// rounds of generation. The KV cache of the previous weights is not used again.
    ///
    /// # Errors
    /// [`EngineError::Weights`] while sessions or adapters exist, when the new weights do not fit, and when the backend
    /// cannot replace weights; the previous weights stay in use. [`EngineError::Dead`] after the engine has stopped.
    pub async fn replace_weights(&self, weights: Weights) -> Result<(), EngineError> {
        self.0.alive()?;
        let (reply, answer) = oneshot::channel();
        self.0.send(EngineCommand::ReplaceWeights { weights: Box::new(weights), reply });
        let stopped = || EngineError::Dead("it was shut down while replacing the weights".into());
        answer.await.unwrap_or_else(|_| Err(self.0.alive().err().unwrap_or_else(stopped)))
    }

    /// Returns the state of the engine at the end of the current step. Delays no step.
    ///
    /// # Errors
    /// [`EngineError::Dead`] after the engine has stopped.
    pub async fn snapshot(&self) -> Result<EngineSnapshot, EngineError> {
        self.0.alive()?;
        let (reply, answer) = oneshot::channel();
        self.0.send(EngineCommand::Snapshot(reply));
        let stopped = || EngineError::Dead("it was shut down while taking a snapshot".into());
        answer.await.map_err(|_| self.0.alive().err().unwrap_or_else(stopped))
    }

    /// Stops the thread and waits for it. Open sessions get an error.
    pub async fn shutdown(&self) {
        let (done, over) = oneshot::channel();
        self.0.send(EngineCommand::Shutdown(done));
        // An error also means that the thread has ended: it dropped the sender, or the channel was closed before.
        let _ = over.await;
    }

    /// Stops the thread before the process exits, because no thread may be inside a driver that is unloaded with the
    /// process. A step may take `step_limit`, after which a GPU counts as lost; one second later this method stops
    /// waiting.
    pub async fn end(&self, step_limit: Duration) {
        if tokio::time::timeout(step_limit + Duration::from_secs(1), self.shutdown()).await.is_err() {
            tracing::warn!("the engine did not stop in time: a step is still running");
        }
    }
}

/// An adapter that is being loaded. If the caller stops waiting, an adapter that has already arrived is unloaded here,
/// and a later one by the thread, which finds the receiver closed.
struct PendingAdapter<'e> {
    answer: oneshot::Receiver<Result<LoadedAdapter, EngineError>>,
    engine: &'e Engine,
}

impl Drop for PendingAdapter<'_> {
    fn drop(&mut self) {
        // Closed first, so no adapter can arrive after `try_recv`.
        self.answer.close();
        if let Ok(Ok(adapter)) = self.answer.try_recv() {
            self.engine.unload_adapter(adapter);
        }
    }
}
