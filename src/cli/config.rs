//! `waymark config`: the configuration of a server as it results from flags, environment and file.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

use super::arguments::file_flags;
use crate::config::{FlagFile, ServeArgs, StateLocation};

/// Heading of flags without one of their own.
const SERVER: &str = "Server";

/// Configuration of a server.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Prints the value of every flag of `waymark serve` and where it comes from: the command line, the environment,
    /// the file of --config, or the default. The output is a valid file for --config.
    #[command(after_help = "\
Examples:
  waymark config show --config waymark.toml --port 9000
  waymark config show > waymark.toml")]
    Show(ShownConfig),
}

/// Values of the flags of a server, as TOML.
#[derive(Debug)]
pub(crate) struct ShownConfig {
    text: String,
}

impl ConfigCommand {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let ConfigCommand::Show(shown) = self;
        io::stdout().write_all(shown.text.as_bytes())?;
        Ok(())
    }
}

// Implemented by hand, because only the matches know the sources of the values.
impl FromArgMatches for ShownConfig {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // Refuses what `waymark serve` would refuse.
        ServeArgs::from_arg_matches(matches)?;
        Ok(Self { text: shown(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ShownConfig {
    fn augment_args(command: clap::Command) -> clap::Command {
        ServeArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ServeArgs::augment_args_for_update(command)
    }
}

/// Writes all flags by heading, those without a value as comments.
fn shown(matches: &ArgMatches) -> String {
    let flags = file_flags();
    let file = matches.get_one::<PathBuf>("config").and_then(|path| FlagFile::read(path, &flags).ok());
    let serve = ServeArgs::augment_args(clap::Command::new("serve"));
    let mut text = String::new();
    let mut section = None;
    for flag in serve.get_arguments().filter(|flag| flag.get_id() != "config") {
        let heading = flag.get_help_heading().unwrap_or(SERVER);
        if section != Some(heading) {
            let break_before = if section.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{break_before}# {heading}");
            section = Some(heading);
        }
        let _ = writeln!(text, "{}", line(flag, matches, file.as_ref()));
    }
    text
}

/// Returns the line of a flag: its value and the source of the value.
fn line(flag: &Arg, matches: &ArgMatches, file: Option<&FlagFile>) -> String {
    let name = flag.get_long().unwrap_or_default();
    let id = flag.get_id().as_str();
    let Some(source) = matches.value_source(id) else { return format!("# {name} is not set") };
    if flag.is_hide_env_values_set() && !is_public(id, matches) {
        return format!("# {name} is set, and not shown");
    }
    let raw = matches.get_raw(id).into_iter().flatten();
    let values: Vec<String> = raw.map(|value| value.to_string_lossy().into_owned()).collect();
    let value = match flag.get_action() {
        ArgAction::SetTrue => matches.get_flag(id).to_string(),
        ArgAction::Append => format!("[{}]", values.iter().map(|value| scalar(value)).collect::<Vec<_>>().join(", ")),
        _ => values.first().map(|value| scalar(value)).unwrap_or_default(),
    };
    let source = match source {
        ValueSource::CommandLine if is_of_file(flag, &values, file) => "file".to_owned(),
        ValueSource::CommandLine => "command line".to_owned(),
        ValueSource::EnvVariable => {
            let variable = flag.get_env().unwrap_or_default().to_string_lossy();
            format!("environment, {variable}")
        }
        _ => "default".to_owned(),
    };
    format!("{name} = {value}  # {source}")
}

/// Returns `true` if the value of a flag that may hold a secret holds none: a location of the state that is not a
/// database.
fn is_public(id: &str, matches: &ArgMatches) -> bool {
    // `Err` means that the flag has another type.
    let location = matches.try_get_one::<StateLocation>(id).ok().flatten();
    location.is_some_and(|location| !matches!(location, StateLocation::Postgres(_)))
}

/// Returns `true` if the file sets the flag to these values. Its flags reach the matches as arguments.
fn is_of_file(flag: &Arg, values: &[String], file: Option<&FlagFile>) -> bool {
    let name = flag.get_long().unwrap_or_default();
    let switch = !flag.get_action().takes_values();
    let argument = |value: &String| if switch { format!("--{name}") } else { format!("--{name}={value}") };
    let arguments: Vec<String> = values.iter().map(argument).collect();
    // One argument may hold a list, whose values reach the matches one by one.
    let single = |set: &String| match (set.split_once('='), flag.get_value_delimiter()) {
        (Some((option, list)), Some(comma)) => list.split(comma).map(|value| format!("{option}={value}")).collect(),
        _ => vec![set.clone()],
    };
    let mut flags = file.into_iter().flat_map(FlagFile::flags);
    flags.any(|(id, set)| flag.get_id() == id && set.iter().flat_map(single).eq(arguments.iter().cloned()))
}

/// Writes a value as TOML: a number where it reads the same, and otherwise a string.
fn scalar(text: &str) -> String {
    let integer = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    let float = text.contains('.') && text.parse::<f64>().is_ok_and(|number| number.to_string() == text);
    if integer || float { text.to_owned() } else { toml::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ffi::OsString;

    use clap::{Command, CommandFactory};

    use super::super::Cli;
    use super::super::arguments::complete;
    use super::*;

    fn of(arguments: &[&str]) -> String {
        let command = ServeArgs::augment_args(Command::new("show").no_binary_name(true));
        shown(&command.try_get_matches_from(arguments).unwrap())
    }

    #[test]
    fn what_is_shown_can_be_read_as_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("waymark.toml");
        let text = of(&["--port", "9000", "--policy", "a b", "--policy", "c", "--mock", "--drain-seconds", "2.5"]);
        for line in [
            "# Server",
            "port = 9000  # command line",
            "policy = [\"a b\", \"c\"]  # command line",
            "mock = true  # command line",
            "drain-seconds = 2.5  # command line",
            "# index is not set",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
        }
        std::fs::write(&path, &text).unwrap();
        let file = FlagFile::read(&path, &file_flags()).unwrap();
        assert!(file.flags().any(|(id, arguments)| id == "port" && arguments == ["--port=9000"]));
    }

    #[test]
    fn the_defaults_that_are_shown_are_the_file_of_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("waymark.toml");
        std::fs::write(&path, of(&[])).unwrap();
        let path = path.to_str().unwrap();
        for command in ["serve", "chat", "doctor"] {
            let typed = ["waymark", command, "--config", path].map(OsString::from).to_vec();
            let arguments = complete(typed, |_| None).unwrap().all;
            assert!(arguments.contains(&OsString::from("--mock-step-ms=0")), "{arguments:?}");
            let matches = Cli::command().try_get_matches_from(arguments).unwrap();
            let (_, matches) = matches.subcommand().unwrap();
            ServeArgs::from_arg_matches(matches).unwrap().resolve().unwrap();
        }
    }

    #[test]
    fn a_key_is_not_shown_and_the_file_is_named_as_a_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("waymark.toml");
        std::fs::write(&path, "port = 9000\npolicy = \"a,b\"\n").unwrap();
        let key = "wm_0123456789abcdef0123456789abcdef";
        let path = path.to_str().unwrap();
        let text = of(&["--config", path, "--port=9000", "--policy=a,b", "--kv-bytes=1GiB", "--api-key", key]);
        assert!(text.contains("port = 9000  # file") && text.contains("kv-bytes = \"1GiB\"  # command line"), "{text}");
        assert!(text.contains("policy = [\"a\", \"b\"]  # file"), "{text}");
        assert!(text.contains("# api-key is set, and not shown") && !text.contains(&key[3..]), "{text}");
    }

    #[test]
    fn a_directory_of_the_state_is_shown_and_a_database_is_not() {
        for (location, line) in [
            ("/var/lib/waymark", "state = \"/var/lib/waymark\"  # command line"),
            ("none", "state = \"none\"  # command line"),
            ("postgres://user:secret@host/db", "# state is set, and not shown"),
        ] {
            let text = of(&["--state", location]);
            assert!(
                text.lines().any(|shown| shown == line) && !text.contains("secret"),
                "{line} is missing in\n{text}"
            );
        }
    }
}
