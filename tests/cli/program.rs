//! Runs the program, once or as a server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::pulled;

/// Output and status of a finished run of the program.
pub(crate) struct ProgramRun {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Exit code. `None` if a signal ended the program.
    pub(crate) code: Option<i32>,
}

impl ProgramRun {
    pub(crate) fn ok(&self) -> bool {
        self.code == Some(0)
    }
}

/// Root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waymark"));
    command.args(args).env("WAYMARK_CACHE", pulled::cache()).env("NO_COLOR", "1").stdin(Stdio::null());
    // Questions of tests do not belong into the user's own conversation.
    command.env("WAYMARK_CONVERSATION", "/dev/null");
    command
}

/// Runs the program to its end.
pub(crate) fn waymark(args: &[&str]) -> ProgramRun {
    with(&[], args)
}

/// Runs the program to its end with these environment variables.
pub(crate) fn with(variables: &[(&str, &str)], args: &[&str]) -> ProgramRun {
    run(command(args).envs(variables.iter().copied()))
}

/// Runs the program to its end with `input` as its standard input.
pub(crate) fn typed(input: &str, args: &[&str]) -> ProgramRun {
    let mut command = command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that ends before it has read everything closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    finished(child.wait_with_output().unwrap())
}

/// Starts the program with pipes for its standard input and output.
pub(crate) fn piped(args: &[&str]) -> Child {
    let mut command = command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Runs the program without any variable that names a download folder.
pub(crate) fn homeless(args: &[&str]) -> ProgramRun {
    let mut command = command(args);
    run(command.env_remove("WAYMARK_CACHE").env_remove("XDG_CACHE_HOME").env_remove("HOME"))
}

fn run(command: &mut Command) -> ProgramRun {
    finished(command.output().unwrap())
}

fn finished(output: Output) -> ProgramRun {
    ProgramRun {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code(),
    }
}

/// A running server, killed on drop.
pub(crate) struct Serving {
    child: Child,
    pub(crate) url: String,
}

impl Serving {
    /// Starts `waymark serve` with these flags on a free port.
    pub(crate) fn start(args: &[&str]) -> Serving {
        let mut all = vec!["--log", "warn", "serve", "--port", "0"];
        all.extend(args);
        let mut child = command(&all).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").expect("the server says where it listens").to_owned();
        Serving { child, url }
    }

    /// Sends a signal, such as `-HUP`.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Sends SIGTERM. Returns `true` if the server ended with success.
    pub(crate) fn stop(mut self) -> bool {
        self.signal("-TERM");
        self.child.wait().unwrap().success()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
