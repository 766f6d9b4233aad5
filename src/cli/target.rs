//! Flags that choose the server of a command: a running one, or one in this process.

use std::future::Future;
use std::path::PathBuf;

use anyhow::bail;
use clap::parser::ValueSource;
use waymark_agent::Policy;
use waymark_runtime::InvalidConfiguration;

use super::client::{self, Client};
use super::serve;
use crate::config::{ServeArgs, ServeConfig};

/// Flags that choose the server of a command, and the policy there.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TargetArgs {
    /// URL of a running server to ask.
    #[arg(long, env = "WAYMARK_URL", value_name = "URL", value_parser = client::server_url)]
    url: Option<String>,

    /// File of CA certificates (PEM) to trust instead of the public ones when the server uses HTTPS.
    #[arg(long, env = "WAYMARK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Name of the policy to ask. The default is the first one served.
    #[arg(long, env = "WAYMARK_ASK_POLICY", value_name = "NAME")]
    policy_name: Option<String>,

    #[command(flatten)]
    pub(super) serve: ServeArgs,
}

/// IDs of server flags that also apply when a running server is asked.
const SHARED_FLAGS: [&str; 2] = ["api_key", "log_format"];

/// IDs of client flags, which have no effect when this process starts the server.
const CLIENT_FLAGS: [&str; 2] = ["ca", "api_key"];

/// IDs of flags for reachable servers; the server started for a single command has a free port and no keys.
const PUBLIC_FLAGS: [&str; 13] = [
    "host",
    "port",
    "state",
    "state_count",
    "state_bytes",
    "state_days",
    "api_keys",
    "tls_cert",
    "tls_key",
    "cors_origins",
    "open_metrics",
    "private_cache",
    "vector_stores",
];

/// Explains why a flag on the command line would be ignored: it configures the server that this process starts while
/// --url names another, or the reverse. Environment variables are exempt, because they may be meant for other commands,
/// and so are the flags `of_file`, which come from a configuration file.
pub(super) fn unused_flag(matches: &clap::ArgMatches, of_file: &[String]) -> Option<String> {
    let typed = |id: &str| {
        matches.value_source(id) == Some(ValueSource::CommandLine) && !of_file.iter().any(|other| other == id)
    };
    let server_flags = <ServeArgs as clap::Args>::augment_args(clap::Command::new("serve"));
    if matches.get_one::<String>("url").is_none() {
        let named = |id: &str| {
            let flag = server_flags.get_arguments().find(|flag| flag.get_id() == id);
            flag.and_then(clap::Arg::get_long).unwrap_or(id).to_owned()
        };
        let first = |ids: &[&str]| ids.iter().find(|id| typed(id)).map(|id| named(id));
        if let Some(flag) = first(&CLIENT_FLAGS) {
            return Some(format!("--{flag} applies to a running server: add --url (WAYMARK_URL)"));
        }
        let flag = first(&PUBLIC_FLAGS)?;
        return Some(format!(
            "--{flag} has no effect here: without --url (WAYMARK_URL), the server is there for this command only"
        ));
    }
    let mut passed = server_flags.get_arguments().filter(|flag| !SHARED_FLAGS.contains(&flag.get_id().as_str()));
    let flag = passed.find(|flag| typed(flag.get_id().as_str()))?.get_long()?;
    Some(format!(
        "--{flag} configures a new server, but --url (WAYMARK_URL) names a running one: give only one of them"
    ))
}

impl TargetArgs {
    /// Returns the name of the policy to ask. `None` stands for the first one served.
    pub(super) fn policy(&self) -> Option<&str> {
        self.policy_name.as_deref()
    }

    /// Runs `work` with a client of the server: of the running one that is named, or of one that this process starts
    /// and stops afterwards.
    ///
    /// # Errors
    /// If flags are invalid, the server cannot be started, or `work` fails.
    pub(super) async fn with_client<T, F>(self, work: impl FnOnce(Client) -> F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<T>>,
    {
        if let Some(url) = &self.url {
            let client = Client::new(url).with_key(self.serve.access.key()?).trusting(self.ca.as_deref())?;
            return work(client).await;
        }
        let config = self.serve.resolve().map_err(InvalidConfiguration::new)?;
        check_index(&config, self.policy_name.as_deref())?;
        // Without a search, the model answers as it was trained to.
        if self.policy_name.as_deref() != Some("plain") {
            serve::warn_of_untrained(&config);
        }
        serve::with_server(config, |url| work(Client::new(&url))).await
    }
}

/// Refuses a policy that searches without an index, before weights are loaded for nothing.
///
/// # Errors
/// Says how to give an index, or how to ask without one.
fn check_index(config: &ServeConfig, asked: Option<&str>) -> anyhow::Result<()> {
    if config.retrieval.index.is_some() {
        return Ok(());
    }
    let mut served: Vec<Policy> = config.policies.iter().map(|dir| Policy::open(dir)).collect::<Result<_, _>>()?;
    // A protocol without a policy file is served under a name of its own, before the built-in policies.
    if let Some(protocol) = config.protocol.as_deref().filter(|_| asked.is_none()) {
        served = Policy::builtin(protocol).into_iter().collect();
    }
    served.extend(Policy::BUILTIN.iter().filter_map(|name| Policy::builtin(name)));
    let policy = served.iter().find(|policy| asked.is_none_or(|name| policy.name == name));
    if let Some(policy) = policy.filter(|policy| policy.searches()) {
        bail!(
            "the policy `{}` searches, but there is no index: make one of your documents by `waymark index build --corpus \
             FILE --out DIR` and give it as --index DIR, or ask without searching by --policy-name plain",
            policy.name
        );
    }
    Ok(())
}
