//! The engine's thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;

use tokio::sync::oneshot;

use super::command::Command;
use super::core::Core;
use super::error::EngineError;

/// Starts the thread. It ends when every sender is gone or it is told to.
pub(super) fn spawn(core: Core, commands: Receiver<Command>) -> Result<(), EngineError> {
    let run = move || run(core, &commands);
    match thread::Builder::new().name("waymark-engine".into()).spawn(run) {
        Ok(_) => Ok(()),
        Err(error) => Err(EngineError::Dead(format!("cannot start its thread: {error}"))),
    }
}

fn run(mut core: Core, commands: &Receiver<Command>) {
    let pulse = core.pulse.clone();
    // A fault in the accounting itself: better dead and known to be than wrong.
    let result = catch_unwind(AssertUnwindSafe(|| serve(&mut core, commands)));
    if let Err(panic) = &result {
        pulse.stop(&format!("its thread panicked: {}", message(panic.as_ref())));
    }
    pulse.stop("it was shut down");
    // Ends every open turn with an error, then tells whoever waits for the end.
    let done = result.unwrap_or_default();
    core.fail_all();
    core.wake();
    core.leave();
    drop(done);
}

/// Alternates between commands and steps; blocks while there is nothing to do.
fn serve(core: &mut Core, commands: &Receiver<Command>) -> Option<oneshot::Sender<()>> {
    let mut held = None;
    loop {
        if !core.busy() && held.is_none() {
            core.rest();
            match commands.recv() {
                Ok(command) => held = Some(command),
                Err(_) => return None,
            }
        }
        loop {
            match held.take().map_or_else(|| commands.try_recv(), Ok) {
                Ok(Command::Shutdown(done)) => return Some(done),
                Ok(command) => core.apply(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        if core.begin() {
            held = core.overlaps().then(|| meanwhile(core, commands)).flatten();
            core.conclude();
        }
    }
}

/// What can be done while the backend works. Returns the first command that has to wait until it is done; those behind it
/// stay where they are, so that none overtakes another.
fn meanwhile(core: &mut Core, commands: &Receiver<Command>) -> Option<Command> {
    let mut held = None;
    while held.is_none() {
        match commands.try_recv() {
            Ok(command) if core.concerns_flight(&command) => held = Some(command),
            Ok(command) => core.apply(command),
            // A channel without senders is seen again after the step.
            Err(_) => break,
        }
    }
    core.prepare();
    held
}

/// The text of a panic, where it has one.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
