//! Arguments of the program, completed by the flags of a configuration file.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};

use super::Cli;
use crate::config::{FlagFile, FlagFileError, ServeArgs};

/// Commands that take the flags of a server.
const SERVING: [&str; 6] = ["serve", "demo", "ask", "chat", "config", "doctor"];

/// Commands that ask a running server if `--url` names one. They then take no flags of a server.
const ASKING: [&str; 2] = ["ask", "chat"];

/// Arguments of the program.
#[derive(Debug)]
pub(super) struct CompletedArguments {
    /// All arguments, those of the file included.
    pub(super) all: Vec<OsString>,
    /// IDs of the flags that come from the file.
    pub(super) of_file: Vec<String>,
    /// Path of the file. `None` if none was read.
    pub(super) file: Option<PathBuf>,
}

/// Returns a command with the flags that a configuration file may set: those of a server, and those of all commands.
pub(super) fn file_flags() -> Command {
    let common: Vec<clap::Arg> = Cli::command().get_arguments().cloned().collect();
    ServeArgs::augment_args(Command::new("serve")).args(common)
}

/// Adds the flags of the configuration file that `--config` or its environment variable names, except those that are
/// given on the command line or in the environment. They become arguments, so they are checked as flags are.
///
/// # Errors
/// If the file cannot be read or sets something that is no flag.
pub(super) fn complete(
    typed: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<CompletedArguments, FlagFileError> {
    let none = |all| Ok(CompletedArguments { all, of_file: Vec::new(), file: None });
    let command = command_name(&typed);
    let asks = command.is_some_and(|name| ASKING.contains(&name));
    let names_server = value(&typed, "--url").is_some() || variable("WAYMARK_URL").is_some();
    let describes = ["-h", "--help", "-V", "--version"].iter().any(|flag| is_typed(&typed, flag));
    if describes || !command.is_some_and(|name| SERVING.contains(&name)) || (asks && names_server) {
        return none(typed);
    }
    let Some(path) = value(&typed, "--config").or_else(|| variable("WAYMARK_CONFIG")).map(PathBuf::from) else {
        return none(typed);
    };
    let flags = file_flags();
    let file = FlagFile::read(&path, &flags)?;
    let given = |id: &str| {
        let flag = flags.get_arguments().find(|flag| flag.get_id() == id);
        let in_environment = flag.and_then(|flag| variable(flag.get_env()?.to_str()?)).is_some();
        let names = flag.and_then(clap::Arg::get_long_and_visible_aliases).unwrap_or_else(|| vec![id]);
        in_environment || names.iter().any(|name| is_typed(&typed, &format!("--{name}")))
    };
    let mut added = Vec::new();
    let mut of_file = Vec::new();
    for (id, arguments) in file.flags().filter(|(id, _)| !given(id)) {
        added.extend(arguments.iter().map(OsString::from));
        of_file.push(id.to_owned());
    }
    let mut all = typed;
    // What follows `--` are values, never flags.
    let end = all.iter().position(|argument| argument == "--").unwrap_or(all.len());
    all.splice(end..end, added);
    Ok(CompletedArguments { all, of_file, file: Some(path) })
}

/// Returns the name of the command: the first argument that is neither a flag nor its value.
fn command_name(typed: &[OsString]) -> Option<&str> {
    let mut rest = typed.iter().skip(1).map(|argument| argument.to_str().unwrap_or_default());
    while let Some(argument) = rest.next() {
        match argument {
            "--log" => drop(rest.next()),
            flag if flag.starts_with('-') => {}
            name => return Some(name),
        }
    }
    None
}

/// Returns the arguments that can be flags.
fn before_values(typed: &[OsString]) -> impl Iterator<Item = &OsString> {
    typed.iter().take_while(|argument| *argument != "--")
}

fn is_typed(typed: &[OsString], flag: &str) -> bool {
    let prefix = format!("{flag}=");
    before_values(typed)
        .any(|argument| argument == flag || argument.to_str().is_some_and(|argument| argument.starts_with(&prefix)))
}

/// Returns the value of a flag, given as `--flag value` or `--flag=value`.
fn value(typed: &[OsString], flag: &str) -> Option<OsString> {
    let prefix = format!("{flag}=");
    let mut arguments = before_values(typed);
    while let Some(argument) = arguments.next() {
        if argument == flag {
            return arguments.next().cloned();
        }
        if let Some(value) = argument.to_str().and_then(|argument| argument.strip_prefix(&prefix)) {
            return Some(OsStr::new(value).to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use super::*;

    fn completed(typed: &[&str], set: &[(&str, &str)]) -> Vec<String> {
        let typed = std::iter::once("waymark").chain(typed.iter().copied()).map(OsString::from).collect();
        let variable =
            |name: &str| set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value));
        let all = complete(typed, variable).unwrap().all;
        all.into_iter().skip(1).map(|argument| argument.into_string().unwrap()).collect()
    }

    fn file(dir: &Path) -> String {
        let path = dir.join("waymark.toml");
        std::fs::write(&path, "port = 9000\nhost = \"0.0.0.0\"\nlog = \"warn\"\n").unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn flags_and_variables_take_precedence_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path());
        let mut plain = completed(&["serve", "--config", &path], &[]);
        plain[3..].sort_unstable();
        assert_eq!(plain, ["serve", "--config", &path, "--host=0.0.0.0", "--log=warn", "--port=9000"]);
        let named = format!("--config={path}");
        let mut typed = completed(&["--log", "debug", "serve", &named, "--port=1"], &[]);
        assert_eq!(typed.pop().unwrap(), "--host=0.0.0.0");
        assert_eq!(typed, ["--log", "debug", "serve", &named, "--port=1"]);
        let set = [("WAYMARK_CONFIG", &*path), ("WAYMARK_HOST", "::1"), ("WAYMARK_LOG", "info")];
        assert_eq!(completed(&["serve"], &set), ["serve", "--port=9000"]);
    }

    #[test]
    fn a_flag_by_another_name_takes_precedence_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("waymark.toml");
        std::fs::write(&path, "kv-bytes = \"1GiB\"\nport = 9000\n").unwrap();
        let path = path.to_str().unwrap();
        for typed in [&["--kv-memory", "2GiB"][..], &["--kv-memory=2GiB"], &["--kv-bytes=2GiB"]] {
            let typed = [&["serve", "--config", path][..], typed].concat();
            assert_eq!(completed(&typed, &[]), [&typed[..], &["--port=9000"]].concat());
        }
    }

    #[test]
    fn commands_without_a_server_ignore_the_file() {
        let set = [("WAYMARK_CONFIG", "no/such/file.toml")];
        for typed in
            [&["search", "x"][..], &["ask", "--url", "http://x", "Who?"], &["serve", "--help"], &["--version"], &[]]
        {
            assert_eq!(completed(typed, &set), typed);
        }
        let asked = complete(vec!["waymark".into(), "ask".into(), "Who?".into()], |_| Some("no/such".into()));
        // Every variable is set here, WAYMARK_URL among them.
        assert!(asked.unwrap().file.is_none());
    }

    #[test]
    fn flags_come_before_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path());
        let all = completed(&["ask", "--config", &path, "--", "--port"], &[]);
        assert_eq!(all[all.len() - 2..], ["--", "--port"]);
        assert!(all.contains(&"--port=9000".to_owned()), "{all:?}");
    }
}
