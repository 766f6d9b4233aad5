//! The engine as its callers see it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use waymark_models::tokenizer::TokenBytes;

use super::backend::{Backend, BackendSpec};
use super::command::{Command, Permit};
use super::config::EngineConfig;
use super::core::Core;
use super::counters::Counters;
use super::error::EngineError;
use super::health::{Health, Pulse};
use super::request::{Adapter, SessionOptions};
use super::session::Session;
use super::snapshot::EngineSnapshot;
use super::worker;

/// A handle to a running engine. Clones share it; the thread ends with the last handle and the last session.
#[derive(Debug, Clone)]
pub struct Engine(pub(super) Arc<Shared>);

/// What handles and the thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) spec: BackendSpec,
    overlaps: bool,
    pub(super) config: EngineConfig,
    pub(super) counters: Arc<Counters>,
    pub(super) pulse: Arc<Pulse>,
    commands: mpsc::Sender<Command>,
    sessions: AtomicU64,
    waiting: Arc<AtomicUsize>,
}

impl Shared {
    /// Tells the thread; a thread that is gone has failed every session already.
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(super) fn permit(&self) -> Result<Permit, EngineError> {
        let limit = self.config.max_waiting;
        Permit::take(&self.waiting, limit).ok_or(EngineError::QueueFull { limit })
    }

    /// Fails once the thread has stopped.
    pub(super) fn alive(&self) -> Result<(), EngineError> {
        self.pulse.stopped().map_or(Ok(()), |reason| Err(EngineError::Dead(reason.to_owned())))
    }

    /// The longest sequence that can be held, in tokens.
    pub(super) fn limit(&self) -> usize {
        self.spec.limit()
    }
}

impl Engine {
    /// Starts the thread that owns `backend`. `bytes` are the raw bytes of its vocabulary, in which stop strings are
    /// looked for.
    ///
    /// # Errors
    /// [`EngineError::Request`] for settings under which nothing could run, [`EngineError::Dead`] when the operating
    /// system refuses a thread.
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig, bytes: Arc<TokenBytes>) -> Result<Self, EngineError> {
        config.check()?;
        let spec = backend.spec().clone();
        if spec.limit() < 2 {
            return Err(EngineError::Request(format!("{} KV blocks are not enough for one token", spec.blocks)));
        }
        let overlaps = backend.overlaps();
        let (commands, inbox) = mpsc::channel();
        let counters = Arc::new(Counters::new());
        let pulse = Arc::new(Pulse::default());
        let core = Core::new(backend, config.clone(), bytes, counters.clone(), pulse.clone());
        worker::spawn(core, inbox)?;
        let (sessions, waiting) = (AtomicU64::new(0), Arc::default());
        let shared = Shared { spec, overlaps, config, counters, pulse, commands, sessions, waiting };
        Ok(Self(Arc::new(shared)))
    }

    /// A new, empty session. Nothing reaches the engine before its first turn.
    pub fn session(&self, options: SessionOptions) -> Session {
        Session::new(self.0.clone(), self.0.sessions.fetch_add(1, Relaxed), options)
    }

    /// What it counts.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Whether it takes requests.
    pub fn health(&self) -> Health {
        self.0.pulse.health()
    }

    /// What it computes with.
    pub fn spec(&self) -> &BackendSpec {
        &self.0.spec
    }

    /// Whether its backend works beside this machine's processor: on a card.
    pub fn overlaps(&self) -> bool {
        self.0.overlaps
    }

    /// Its settings.
    pub fn config(&self) -> &EngineConfig {
        &self.0.config
    }

    /// The longest sequence a session can be, in tokens: the model's context or the whole KV pool.
    pub fn limit(&self) -> usize {
        self.0.limit()
    }

    /// Loads a PEFT adapter between two steps. Dropping the future leaves none behind.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] when it does not fit the model, [`EngineError::Dead`] after the engine has stopped.
    pub async fn load_adapter(&self, dir: PathBuf) -> Result<Adapter, EngineError> {
        self.0.alive()?;
        let (reply, answer) = oneshot::channel();
        let mut coming = Coming { answer, engine: self };
        self.0.send(Command::LoadAdapter { dir, reply });
        let stopped = || EngineError::Dead("it stopped while an adapter was being loaded".into());
        (&mut coming.answer).await.unwrap_or_else(|_| Err(self.0.alive().err().unwrap_or_else(stopped)))
    }

    /// Forgets an adapter when the last session that uses it is gone; new turns with it are refused at once.
    pub fn unload_adapter(&self, adapter: Adapter) {
        self.0.send(Command::UnloadAdapter(adapter));
    }

    /// What it is doing, as of the end of the step that runs now. Asking holds up no step.
    ///
    /// # Errors
    /// [`EngineError::Dead`] after the engine has stopped.
    pub async fn snapshot(&self) -> Result<EngineSnapshot, EngineError> {
        self.0.alive()?;
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::Snapshot(reply));
        let stopped = || EngineError::Dead("it stopped while its state was asked for".into());
        answer.await.map_err(|_| self.0.alive().err().unwrap_or_else(stopped))
    }

    /// Stops the thread and waits for it. Sessions that are still there get an error.
    pub async fn shutdown(&self) {
        let (done, over) = oneshot::channel();
        self.0.send(Command::Shutdown(done));
        // Either way the sender is gone: dropped by the thread at its end, or with the channel.
        let _ = over.await;
    }

    /// Stops the thread before the process ends: a driver goes with the process, and no thread may be in it then. A step
    /// may take `step_limit`, after which a card counts as lost; what is still at work a second later is left alone.
    pub async fn end(&self, step_limit: Duration) {
        if tokio::time::timeout(step_limit + Duration::from_secs(1), self.shutdown()).await.is_err() {
            tracing::warn!("the engine is still at work");
        }
    }
}

/// An adapter that is being loaded. One that has come when nobody waits any more is unloaded here; one that comes later by the
/// thread, which finds that it cannot be handed over.
struct Coming<'e> {
    answer: oneshot::Receiver<Result<Adapter, EngineError>>,
    engine: &'e Engine,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(adapter)) = self.answer.try_recv() {
            self.engine.unload_adapter(adapter);
        }
    }
}
