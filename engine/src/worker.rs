//! The engine thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;

use tokio::sync::oneshot;

use super::command::EngineCommand;
use super::core::Core;
use super::error::EngineError;
use super::health::StopFlag;

/// Starts the engine thread, which ends when every sender is dropped, or on [`EngineCommand::Shutdown`].
pub(super) fn spawn(
    core: Core,
    stop_flag: Arc<StopFlag>,
    commands: Receiver<EngineCommand>,
) -> Result<(), EngineError> {
    let run = move || run(core, &stop_flag, &commands);
    match thread::Builder::new().name("waymark-engine".into()).spawn(run) {
        Ok(_) => Ok(()),
        Err(error) => Err(EngineError::Dead(format!("cannot start the engine thread: {error}"))),
    }
}

fn run(mut core: Core, stop_flag: &StopFlag, commands: &Receiver<EngineCommand>) {
    // After a panic in the accounting itself, a stopped engine is safer than a wrong one.
    let result = catch_unwind(AssertUnwindSafe(|| serve(&mut core, commands)));
    if let Err(panic) = &result {
        stop_flag.stop(&format!("the engine thread panicked: {}", panic_message(panic.as_ref())));
    }
    stop_flag.stop("it was shut down");
    // Open turns end with an error before the caller of `shutdown` is notified.
    let done = result.unwrap_or_default();
    core.shut_down();
    drop(done);
}

/// Alternates between commands and steps. Blocks while the engine is idle.
fn serve(core: &mut Core, commands: &Receiver<EngineCommand>) -> Option<oneshot::Sender<()>> {
    let mut held = None;
    loop {
        if !core.is_busy() && held.is_none() {
            core.steps().prepare_idle();
            match commands.recv() {
                Ok(command) => held = Some(command),
                Err(_) => return None,
            }
        }
        loop {
            match held.take().map_or_else(|| commands.try_recv(), Ok) {
                Ok(EngineCommand::Shutdown(done)) => return Some(done),
                Ok(command) => core.apply(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        if core.steps().begin() {
            held = core.overlaps().then(|| run_during_pass(core, commands)).flatten();
            core.steps().conclude();
        }
    }
}

/// Executes commands while the backend works. Returns the first command that has to wait for the pass; later ones stay
/// in the channel, so none overtakes another.
fn run_during_pass(core: &mut Core, commands: &Receiver<EngineCommand>) -> Option<EngineCommand> {
    core.steps().send();
    let mut held = None;
    while held.is_none() {
        match commands.try_recv() {
            Ok(command) if core.concerns_flight(&command) => held = Some(command),
            Ok(command) => core.apply(command),
            // A disconnected channel is noticed after the step.
            Err(_) => break,
        }
    }
    core.steps().prepare();
    held
}

/// Returns the text of a panic, or `no message`.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
