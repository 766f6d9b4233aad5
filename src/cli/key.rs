//! `waymark key`: API keys.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::keys::{
    IndexScope, KeyEntry, KeyId, KeyLimits, RequestPriority, Scope, Secret, add_key, read_keys, revoke_key,
};

/// API keys.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeyCommand {
    New(NewKey),
    List(ListKeys),
    Revoke(RevokeKey),
}

/// Lists the keys in a file: names, scopes and limits. The keys themselves are not in it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  waymark key list --file keys.toml")]
pub(crate) struct ListKeys {
    /// File of API keys.
    #[arg(long, env = "WAYMARK_API_KEYS", value_name = "FILE")]
    file: PathBuf,
}

/// Removes a key from a file. A running server drops the key when it gets SIGHUP.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  waymark key revoke alice --file keys.toml && systemctl reload waymark")]
pub(crate) struct RevokeKey {
    /// Name of the key.
    name: String,

    /// File of API keys.
    #[arg(long, env = "WAYMARK_API_KEYS", value_name = "FILE")]
    file: PathBuf,
}

/// Creates a key of 256 random bits. Only its hash is stored, so the key is shown only once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark key new alice             a key that may ask and search
  waymark key new bob --index law   a key that may search the index law alone
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

    /// Priority of the key's requests relative to those of other keys, and the highest that a request may ask for.
    #[arg(long, value_enum, value_name = "PRIORITY", default_value = "normal")]
    priority: RequestPriority,

    /// Name of an index that the key may use; may be given several times. `default` is the default index. Without it,
    /// the key may use all indexes.
    #[arg(long = "index", value_delimiter = ',', value_name = "NAME")]
    indexes: Vec<String>,

    /// Never share cached prefixes and cached vectors of search queries with other keys.
    #[arg(long)]
    private_cache: bool,

    /// File to append the hashed key to; then only the key itself is printed.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl KeyCommand {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            KeyCommand::New(new) => new.run(),
            KeyCommand::List(list) => list.run(),
            KeyCommand::Revoke(revoke) => revoke.run(),
        }
    }
}

impl ListKeys {
    fn run(self) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        let entries = read_keys(&self.file)?;
        if entries.is_empty() {
            eprintln!("no keys in {}", self.file.display());
        }
        for entry in entries {
            writeln!(out, "{:24}{}", entry.id.to_string(), properties(&entry))?;
        }
        Ok(())
    }
}

/// Describes a key by its scopes and its limits.
fn properties(entry: &KeyEntry) -> String {
    let scopes = entry.scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let limits = [
        (entry.limits.requests_per_minute, "requests/min"),
        (entry.limits.tokens_per_minute, "tokens/min"),
        (entry.limits.concurrent, "at once"),
    ];
    let mut properties = vec![scopes];
    properties.extend(limits.into_iter().filter_map(|(limit, unit)| Some(format!("{} {unit}", limit?))));
    if entry.priority != RequestPriority::default() {
        properties.push(format!("priority {}", entry.priority.name()));
    }
    if let Some(names) = entry.indexes.names() {
        properties.push(format!("indexes {}", names.join(",")));
    }
    if entry.private_cache {
        properties.push("private cache".to_owned());
    }
    properties.join("  ")
}

impl RevokeKey {
    fn run(self) -> anyhow::Result<()> {
        revoke_key(&self.file, &self.name)?;
        writeln!(io::stdout(), "revoked {}: send SIGHUP to the server, or restart it", self.name)?;
        Ok(())
    }
}

impl NewKey {
    fn run(self) -> anyhow::Result<()> {
        ensure!(KeyId::fits(&self.name), "invalid name `{}`: expected 1 to 64 letters, digits and `._-@`", self.name);
        let named = Some(self.indexes).filter(|indexes| !indexes.is_empty());
        let indexes = IndexScope::new(named, &self.scopes).context("no key was created")?;
        let secret = Secret::generate();
        let entry = KeyEntry {
            id: KeyId::new(&self.name),
            digest: secret.digest(),
            indexes,
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
            add_key(file, &entry).context("no key was created")?;
            // Alone on standard output, so a script can take it.
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
    use clap::ValueEnum;

    use super::*;
    use crate::keys::ApiKeys;

    #[test]
    fn the_help_tells_that_an_admin_creates_keys() {
        let help = Scope::Admin.to_possible_value().unwrap().get_help().unwrap().to_string();
        assert!(help.contains("create and revoke API keys of any scope"), "{help}");
    }

    #[test]
    fn a_key_is_described_by_what_it_may_do() {
        let entry = KeyEntry::of_environment(&Secret::generate());
        assert_eq!(properties(&entry), "infer,index,admin");
        let limits = KeyLimits { requests_per_minute: Some(60), concurrent: Some(2), ..KeyLimits::default() };
        let scopes = vec![Scope::Infer];
        let indexes = IndexScope::new(Some(vec!["law".into(), "default".into()]), &scopes).unwrap();
        let priority = RequestPriority::Low;
        let entry = KeyEntry { limits, scopes, indexes, priority, private_cache: true, ..entry };
        let expected = "infer  60 requests/min  2 at once  priority low  indexes law,default  private cache";
        assert_eq!(properties(&entry), expected);
    }

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
                indexes: Vec::new(),
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
