//! `waymark key`: API keys.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::api::auth::{Entry, KeyId, Keys, Limits, Scope, Secret};

/// API keys.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    New(New),
}

/// Makes a key: 256 random bits. Stored is only its hash, so it is shown this one time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark key new alice                           a key that may ask and search
  waymark key new ops --scope infer,index,admin --file keys.toml
  waymark serve --api-keys keys.toml")]
pub(crate) struct New {
    /// Names the key in logs: letters, digits and `._-@`.
    name: String,

    /// What it may do.
    #[arg(long = "scope", value_enum, value_delimiter = ',', value_name = "SCOPE", default_value = "infer")]
    scopes: Vec<Scope>,

    /// Requests in a minute; not bounded when not given.
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u32>,

    /// Requests at the same time; not bounded when not given.
    #[arg(long, value_name = "N")]
    concurrent: Option<u32>,

    /// Never let it share cached prefixes with other keys.
    #[arg(long)]
    private_cache: bool,

    /// File to append the stored form to; then only the key itself is printed.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Command::New(new) = self;
        new.run()
    }
}

impl New {
    fn run(self) -> anyhow::Result<()> {
        ensure!(KeyId::fits(&self.name), "`{}`: a name has 1 to 64 letters, digits and `._-@`", self.name);
        let secret = Secret::generate();
        let entry = Entry {
            id: KeyId::new(&self.name),
            digest: secret.digest(),
            scopes: self.scopes,
            limits: Limits { requests_per_minute: self.requests_per_minute, concurrent: self.concurrent },
            private_cache: self.private_cache,
        };
        let mut out = io::stdout();
        if let Some(file) = &self.file {
            if file.exists() {
                // A server refuses a file with two keys of one name: it would not start again.
                Keys::open(Some(file), vec![entry.clone()]).context("no key was made")?;
            }
            let appended = OpenOptions::new().create(true).append(true).open(file);
            appended.and_then(|mut file| write!(file, "\n{entry}")).with_context(|| file.display().to_string())?;
            writeln!(out, "{}", secret.reveal())?;
            return Ok(());
        }
        writeln!(out, "{}\n", secret.reveal())?;
        writeln!(
            out,
            "# That is the key: it is shown this one time. These lines go into the file of --api-keys:\n{entry}"
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_of_keys_is_never_made_one_that_no_server_takes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let make = |name: &str| {
            let (name, file) = (name.to_owned(), Some(path.clone()));
            let scopes = vec![Scope::Infer];
            New { name, scopes, requests_per_minute: None, concurrent: None, private_cache: false, file }.run()
        };
        make("alice").unwrap();
        make("bob").unwrap();
        let before = std::fs::read_to_string(&path).unwrap();
        let refused = format!("{:#}", make("alice").unwrap_err());
        assert!(refused.contains("alice"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
        assert!(Keys::open(Some(&path), Vec::new()).is_ok());
    }
}
