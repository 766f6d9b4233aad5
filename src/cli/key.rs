//! `waymark key`: API keys.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::keys::{ApiKeys, KeyEntry, KeyId, KeyLimits, RequestPriority, Scope, Secret};

/// API keys.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeyCommand {
    New(NewKey),
}

/// Creates a key of 256 random bits. Only its hash is stored, so the key is shown only once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark key new alice                           a key that may ask and search
  waymark key new ops --scope infer,index,admin --file keys.toml
  waymark serve --api-keys keys.toml")]
pub(crate) struct NewKey {
    /// Name of the key in logs: letters, digits and `._-@`.
    name: String,

    /// Scopes of the key.
    #[arg(long = "scope", value_enum, value_delimiter = ',', value_name = "SCOPE", default_value = "infer")]
    scopes: Vec<Scope>,

    /// Maximum number of requests per minute. Unlimited by default.
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u32>,

    /// Maximum number of tokens per minute, of prompts and answers together. Unlimited by default.
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<u32>,

    /// Maximum number of concurrent requests. Unlimited by default.
    #[arg(long, value_name = "N")]
    concurrent: Option<u32>,

    /// Priority of the key's requests beside those of other keys, and the highest that they may ask for.
    #[arg(long, value_enum, value_name = "PRIORITY", default_value = "normal")]
    priority: RequestPriority,

    /// Never share cached prefixes with other keys.
    #[arg(long)]
    private_cache: bool,

    /// File to append the hashed key to; then only the key itself is printed.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl KeyCommand {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let KeyCommand::New(new) = self;
        new.run()
    }
}

impl NewKey {
    fn run(self) -> anyhow::Result<()> {
        ensure!(KeyId::fits(&self.name), "invalid name `{}`: expected 1 to 64 letters, digits and `._-@`", self.name);
        let secret = Secret::generate();
        let entry = KeyEntry {
            id: KeyId::new(&self.name),
            digest: secret.digest(),
            scopes: self.scopes,
            limits: KeyLimits {
                requests_per_minute: self.requests_per_minute,
                tokens_per_minute: self.tokens_per_minute,
                concurrent: self.concurrent,
            },
            priority: self.priority,
            private_cache: self.private_cache,
        };
        let mut out = io::stdout();
        if let Some(file) = &self.file {
            if file.exists() {
                // A server does not start with two keys of one name in its file.
                ApiKeys::open(Some(file), vec![entry.clone()]).context("no key was created")?;
            }
            let appended = OpenOptions::new().create(true).append(true).open(file);
            appended.and_then(|mut file| write!(file, "\n{entry}")).with_context(|| file.display().to_string())?;
            writeln!(out, "{}", secret.reveal())?;
            return Ok(());
        }
        writeln!(out, "{}\n", secret.reveal())?;
        writeln!(out, "# The key above is shown only once. Add these lines to the file of --api-keys:\n{entry}")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_duplicate_name_leaves_the_file_of_keys_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        let make = |name: &str| {
            let name = name.to_owned();
            let file = Some(path.clone());
            let scopes = vec![Scope::Infer];
            NewKey {
                name,
                scopes,
                requests_per_minute: None,
                tokens_per_minute: None,
                concurrent: None,
                priority: RequestPriority::Low,
                private_cache: false,
                file,
            }
            .run()
        };
        make("alice").unwrap();
        make("bob").unwrap();
        let before = std::fs::read_to_string(&path).unwrap();
        let refused = format!("{:#}", make("alice").unwrap_err());
        assert!(refused.contains("alice"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
        assert!(ApiKeys::open(Some(&path), Vec::new()).is_ok());
    }
}
