//! Configuration file of the server, `waymark.toml`: flags by their names.
//!
//! ```toml
//! port = 9000
//! index = "corpus.index"
//! policy = ["policies/first", "policies/second"]
//! private-cache = true
//! ```

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Arg, ArgAction};
use toml::Value;

/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Minimum similarity at which a known name is proposed for an unknown one.
const SIMILAR: f64 = 0.75;

/// Error of a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum FlagFileError {
    /// The file cannot be read.
    #[error("cannot read the configuration in {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The file is too large to be a configuration.
    #[error("{}: a configuration has at most {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// The file is not TOML.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Line and error of the parser.
        reason: String,
    },
    /// A key is not a flag.
    #[error("{}: unknown key `{key}`{}", path.display(), proposal(.nearest.as_deref()))]
    Unknown {
        /// Path of the file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The most similar flag.
        nearest: Option<String>,
    },
    /// A value has the wrong type.
    #[error("{}: `{key}` must be {expected}", path.display())]
    Type {
        /// Path of the file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Types that the flag takes.
        expected: &'static str,
    },
}

fn proposal(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || ": the keys are the flags of `waymark serve` without `--`".to_owned(),
        |name| format!(": did you mean `{name}`?"),
    )
}

/// Content of a configuration file: values of flags, checked by name and type only.
#[derive(Debug, Default)]
pub struct FlagFile {
    flags: Vec<FlagValue>,
}

/// Value of one flag.
#[derive(Debug)]
struct FlagValue {
    id: String,
    /// Arguments that set the flag, such as `--port=9000`.
    arguments: Vec<String>,
}

impl FlagFile {
    /// Reads the file at `path`. `command` has the flags that it may set.
    ///
    /// # Errors
    /// If the file cannot be read, or sets something that is no flag of `command`.
    pub fn read(path: &Path, command: &clap::Command) -> Result<Self, FlagFileError> {
        let unreadable = |source| FlagFileError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(unreadable)?.len() > MAX_BYTES {
            return Err(FlagFileError::TooLarge(path.to_owned()));
        }
        Self::parse(&fs::read_to_string(path).map_err(unreadable)?, path, command)
    }

    /// Parses the content of the file at `path`.
    fn parse(text: &str, path: &Path, command: &clap::Command) -> Result<Self, FlagFileError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            // The parser's own message quotes the line, which may hold a key.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let reason = format!("line {}: {}", before.matches('\n').count() + 1, error.message());
            FlagFileError::Syntax { path: path.to_owned(), reason }
        })?;
        let value = |(key, value): (String, Value)| match flag(command, &key) {
            Some(flag) => match arguments(flag, &key, value) {
                Ok(arguments) => Ok(FlagValue { id: flag.get_id().to_string(), arguments }),
                Err(expected) => Err(FlagFileError::Type { path: path.to_owned(), key, expected }),
            },
            None => {
                let nearest = nearest(command, &key);
                Err(FlagFileError::Unknown { path: path.to_owned(), key, nearest })
            }
        };
        Ok(Self { flags: table.into_iter().map(value).collect::<Result<_, _>>()? })
    }

    /// Returns the ID of each flag that the file sets, with the arguments that set it.
    pub fn flags(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.flags.iter().map(|flag| (flag.id.as_str(), flag.arguments.as_slice()))
    }
}

/// Returns the names of the flags that a file may set. A file that names another one would be read in part only.
fn names(command: &clap::Command) -> impl Iterator<Item = (&str, &Arg)> {
    let named = command.get_arguments().filter_map(|flag| Some((flag.get_long()?, flag)));
    named.filter(|(name, _)| !["config", "help", "version"].contains(name))
}

fn flag<'a>(command: &'a clap::Command, key: &str) -> Option<&'a Arg> {
    names(command).find(|(name, _)| *name == key).map(|(_, flag)| flag)
}

/// Returns the most similar name, if one is similar.
fn nearest(command: &clap::Command, key: &str) -> Option<String> {
    let similar = names(command).map(|(name, _)| (strsim::jaro_winkler(name, key), name));
    let best = similar.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (best.0 >= SIMILAR).then(|| best.1.to_owned())
}

/// Converts a value to arguments of the command line.
///
/// # Errors
/// Names the types that the flag takes.
fn arguments(flag: &Arg, key: &str, value: Value) -> Result<Vec<String>, &'static str> {
    let takes_values = flag.get_action().takes_values();
    match value {
        Value::Boolean(on) if !takes_values => Ok(if on { vec![format!("--{key}")] } else { Vec::new() }),
        _ if !takes_values => Err("true or false"),
        Value::Array(values) if matches!(flag.get_action(), ArgAction::Append) => {
            let scalars = values.into_iter().map(|value| scalar(value).ok_or("a list of strings or numbers"));
            // With `=`, so a value that begins with `-` is not taken for a flag.
            scalars.map(|text| Ok(format!("--{key}={}", text?))).collect()
        }
        value => {
            let list = matches!(flag.get_action(), ArgAction::Append);
            let expected = if list { "a string, a number, or a list of them" } else { "a string or a number" };
            Ok(vec![format!("--{key}={}", scalar(value).ok_or(expected)?)])
        }
    }
}

fn scalar(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{Args, Command};

    use super::*;
    use crate::config::ServeArgs;

    fn parse(text: &str) -> Result<Vec<String>, String> {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let file = FlagFile::parse(text, Path::new("waymark.toml"), &command).map_err(|error| error.to_string())?;
        Ok(file.flags().flat_map(|(_, arguments)| arguments.to_vec()).collect())
    }

    #[test]
    fn values_become_arguments() {
        let text = "gpu-memory = 0.5\nindex = \"my corpus\"\nmock = true\nopen-metrics = false\npolicy = [\"a\", \"b\"]\nport = 9000\n";
        let expected = ["--gpu-memory=0.5", "--index=my corpus", "--mock", "--policy=a", "--policy=b", "--port=9000"];
        let mut arguments = parse(text).unwrap();
        arguments.sort_unstable();
        assert_eq!(arguments, expected);
        assert_eq!(parse("policy = \"a\"").unwrap(), ["--policy=a"]);
    }

    #[test]
    fn mistakes_are_named_with_what_to_write() {
        for (text, words) in [
            ("prot = 1", "unknown key `prot`: did you mean `port`?"),
            ("kv_bytes = \"1GiB\"", "did you mean `kv-bytes`?"),
            ("[http]\nport = 1", "unknown key `http`"),
            ("config = \"other.toml\"", "unknown key `config`"),
            ("mock = \"yes\"", "`mock` must be true or false"),
            ("port = true", "`port` must be a string or a number"),
            ("port = [1]", "`port` must be a string or a number"),
            ("policy = [[\"a\"]]", "`policy` must be a list of strings or numbers"),
            ("port = 1\nport = 2", "line 2"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.starts_with("waymark.toml: ") && refused.contains(words), "{text}: {refused}");
        }
    }

    #[test]
    fn a_line_that_may_hold_a_key_is_not_quoted() {
        let refused = parse("api-key = wm_secret").unwrap_err();
        assert!(refused.contains("line 1") && !refused.contains("secret"), "{refused}");
    }
}
