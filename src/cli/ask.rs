//! `waymark ask`: answers one question and shows the episode.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;
use waymark_agent::Event;

use super::client::Client;
use super::trace::Printer;
use super::{serve, telemetry};
use crate::config::ServeArgs;

/// Asks one question and shows thinking, searches and the answer as they stream.
///
/// Loads the model in this process, unless --url names a running server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark ask --index corpus.index \"Who painted the Mona Lisa?\"
  waymark ask --url http://127.0.0.1:8080 --json \"Who painted the Mona Lisa?\" | jq .type")]
pub(crate) struct Args {
    /// The question.
    question: String,

    /// URL of a running server to ask.
    #[arg(long, env = "WAYMARK_URL")]
    url: Option<String>,

    /// File of CA certificates (PEM) to trust instead of the public ones when the server uses HTTPS.
    #[arg(long, env = "WAYMARK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Name of the policy to ask. The default is the first one served.
    #[arg(long, env = "WAYMARK_ASK_POLICY", value_name = "NAME")]
    policy_name: Option<String>,

    /// Sampling seed.
    #[arg(long, default_value_t = 0)]
    seed: i64,

    /// Print the events of the trace, one JSON object per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    serve: ServeArgs,
}

/// IDs of server flags that also apply when a running server is asked.
const SHARED_FLAGS: [&str; 2] = ["api_key", "log_format"];

/// IDs of client flags, which have no effect when this process starts the server.
const CLIENT_FLAGS: [&str; 2] = ["ca", "api_key"];

/// IDs of flags for reachable servers; the server started for a single question has a free port and no keys.
const PUBLIC_FLAGS: [&str; 8] =
    ["host", "port", "api_keys", "tls_cert", "tls_key", "cors_origins", "open_metrics", "private_cache"];

/// Explains why a flag on the command line would be ignored: it configures the server that this process starts while
/// --url names another, or the reverse. Environment variables are exempt, because they may be meant for other commands.
pub(super) fn unused_flag(matches: &clap::ArgMatches) -> Option<String> {
    let typed = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
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
            "--{flag} has no effect here: without --url (WAYMARK_URL), the server answers this one question only"
        ));
    }
    let mut passed = server_flags.get_arguments().filter(|flag| !SHARED_FLAGS.contains(&flag.get_id().as_str()));
    let flag = passed.find(|flag| typed(flag.get_id().as_str()))?.get_long()?;
    Some(format!(
        "--{flag} configures a new server, but --url (WAYMARK_URL) names a running one: give only one of them"
    ))
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let serve = self.serve.clone();
        telemetry::traced(log, "warn", &serve, self.ask()).await
    }

    async fn ask(self) -> anyhow::Result<()> {
        let mut request = json!({ "question": self.question, "stream": true, "seed": self.seed });
        if let Some(name) = &self.policy_name {
            request["model"] = json!(name);
        }
        match self.url {
            Some(url) => {
                let client = Client::new(&url).with_key(self.serve.access.key()?).trusting(self.ca.as_deref())?;
                show(&client, &request, self.json).await
            }
            None => {
                let config = self.serve.resolve()?;
                serve::with_server(config, async |url| show(&Client::new(&url), &request, self.json).await).await
            }
        }
    }
}

/// Runs the episode on the client's server and prints its events.
async fn show(client: &Client, request: &serde_json::Value, json: bool) -> anyhow::Result<()> {
    let mut failed = None;
    let mut finished = false;
    let mut printer = Printer::new(anstream::stdout());
    client
        .episode(request, |event| {
            if json {
                let mut out = io::stdout().lock();
                serde_json::to_writer(&mut out, &event).map_err(io::Error::from)?;
                writeln!(out)?;
            } else {
                printer.print(&event)?;
            }
            match event {
                Event::Failed { message, .. } => failed = Some(message),
                Event::Finished { .. } => finished = true,
                _ => {}
            }
            Ok(())
        })
        .await?;
    match failed {
        Some(message) => anyhow::bail!("the episode failed: {message}"),
        None if finished => Ok(()),
        None => anyhow::bail!("the stream ended before the episode finished"),
    }
}
