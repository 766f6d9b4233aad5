//! `waymark ask`: one question, watched.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;

use super::client::Client;
use super::trace::Printer;
use super::{logging, serve};
use crate::agent::Event;
use crate::config::ServeArgs;

/// Asks one question and shows thinking, searches and the answer as they come.
///
/// The model is loaded here, unless --url names a server that is running.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark ask --index corpus.index \"Who painted the Mona Lisa?\"
  waymark ask --url http://127.0.0.1:8080 --json \"Who painted the Mona Lisa?\" | jq .type")]
pub(crate) struct Args {
    /// The question.
    question: String,

    /// A running server to ask.
    #[arg(long, env = "WAYMARK_URL")]
    url: Option<String>,

    /// Certificates to trust in place of the public ones where that server speaks HTTPS, as PEM.
    #[arg(long, env = "WAYMARK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// The policy to ask; the first one served when not given.
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

/// Flags of a server that are read also where another one is asked, by their ids.
const READ: [&str; 2] = ["api_key", "log_format"];

/// Flags of a client, which has no use for them where it brings its own server, by their ids.
const ASKING: [&str; 2] = ["ca", "api_key"];

/// Flags of a server that others reach, by their ids: one that is there for a single question has a free port and no keys.
const REACHED: [&str; 8] =
    ["host", "port", "api_keys", "tls_cert", "tls_key", "cors_origins", "open_metrics", "private_cache"];

/// Why a flag that was typed would be passed over: it is for a server of its own and another one is asked, or the other way
/// round. What variables set may be meant for other commands.
pub(super) fn unread(matches: &clap::ArgMatches) -> Option<String> {
    let typed = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    let own = <ServeArgs as clap::Args>::augment_args(clap::Command::new("serve"));
    if matches.get_one::<String>("url").is_none() {
        let named = |id: &str| {
            let flag = own.get_arguments().find(|flag| flag.get_id() == id);
            flag.and_then(clap::Arg::get_long).unwrap_or(id).to_owned()
        };
        let first = |ids: &[&str]| ids.iter().find(|id| typed(id)).map(|id| named(id));
        if let Some(flag) = first(&ASKING) {
            return Some(format!("--{flag} is for a server that runs, and no --url (WAYMARK_URL) names one"));
        }
        let flag = first(&REACHED)?;
        return Some(format!(
            "--{flag} is for a server that others reach: without --url (WAYMARK_URL) nobody else does"
        ));
    }
    let mut passed = own.get_arguments().filter(|flag| !READ.contains(&flag.get_id().as_str()));
    let flag = passed.find(|flag| typed(flag.get_id().as_str()))?.get_long()?;
    Some(format!("--{flag} is for a server of its own, and --url (WAYMARK_URL) names one that runs: leave one out"))
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let serve = self.serve.clone();
        logging::traced(log, "warn", &serve, self.ask()).await
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
                serve::beside(config, async |url| show(&Client::new(&url), &request, self.json).await).await
            }
        }
    }
}

/// Runs the episode at the client's server and prints its events.
async fn show(client: &Client, request: &serde_json::Value, json: bool) -> anyhow::Result<()> {
    let (mut failed, mut finished) = (None, false);
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
        None => anyhow::bail!("the stream ended before the episode did"),
    }
}
