//! `waymark demo`: a server with small weights, a trained policy and a small corpus.

mod policy;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use serde::Deserialize;
use waymark_agent::Policy;
use waymark_index::{BuildOptions, Corpus, Document, Index, Triple, build};
use waymark_runtime::config::DEFAULT_MODEL;
use waymark_runtime::embedding::Embedding;
use waymark_runtime::{InvalidConfiguration, cache};

use super::build_bars::BuildBars;
use super::credentials::Credentials;
use super::{assembly, serve, start, telemetry};
use crate::config::{ServeArgs, ServeConfig, StateLocation};
use crate::server::{Hangups, Server, stop_signal};

/// Corpus of the demo, embedded in the program.
const CORPUS: &str = include_str!("../../../demo/corpus.jsonl");
/// Triples of the corpus.
const TRIPLES: &str = include_str!("../../../demo/triples.jsonl");

/// A line of [`TRIPLES`].
#[derive(Deserialize)]
struct Statements {
    id: String,
    triples: Vec<Triple>,
}

/// Starts everything at once: downloads the default weights, builds an index of a small corpus, and serves a policy
/// that was trained to search it.
///
/// The first start downloads about 190 MB and embeds the corpus; later ones take seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  waymark demo --port 8080\n  waymark demo --all-policies")]
pub(crate) struct Args {
    /// Serve the policies of all systems over one base model: each folder in DIR that holds a policy or a family of
    /// policies. DIR defaults to `models/policies` in the current directory, as in the source code. Requests choose a policy by `model`.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "models/policies", conflicts_with = "policies")]
    all_policies: Option<PathBuf>,

    #[command(flatten)]
    serve: ServeArgs,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        let serve = self.serve.clone();
        telemetry::traced(log, "warn", &serve, self.serve()).await
    }

    async fn serve(self) -> anyhow::Result<()> {
        let mut config = self.serve.resolve().map_err(InvalidConfiguration::new)?;
        if let Some(dir) = &self.all_policies {
            config.policies = policy::folders(dir)?;
        }
        let step_limit = config.model.device.step_limit;
        // Signals are caught from here on, while weights are still being downloaded.
        let mut stop = Box::pin(stop_signal());
        // A hang-up ends a process in a terminal that has nothing to reload, as users expect.
        let hangups = (wants_trained(&config) || start::catches_hangups(&config)).then(Hangups::catch);
        let (server, model) = start::unless_stopped(prepare(config), stop.as_mut()).await?;
        start::reload_on_hangup(&server, hangups);
        let url = server.url();
        let mut out = io::stdout();
        writeln!(out, "listening on {url}\n")?;
        // A server that listens on every address is reached at the loopback address.
        let url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
        writeln!(out, "open it in a browser, or try, in another terminal:\n")?;
        writeln!(out, "  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{{")?;
        writeln!(out, "    \"model\": \"{model}\", \"stream\": true, \"rag\": {{\"trace\": true}},")?;
        writeln!(out, "    \"messages\": [{{\"role\": \"user\", \"content\": \"Who painted the Mona Lisa?\"}}]}}'\n")?;
        writeln!(out, "  waymark ask --url {url} \"Who painted the Mona Lisa?\"\n")?;
        if self.all_policies.is_some() {
            writeln!(out, "All policies, as `model` takes them:\n\n  curl {url}/v1/models\n")?;
        }
        writeln!(out, "Press Ctrl-C to stop.")?;
        serve::until(server, stop, step_limit).await;
        Ok(())
    }
}

/// Returns `true` if the trained policy is served. It belongs to the default weights; flags for policies or other
/// weights replace it.
fn wants_trained(config: &ServeConfig) -> bool {
    config.policies.is_empty() && config.model.weights.as_deref() == Some(DEFAULT_MODEL)
}

/// Starts a server of the demo's corpus. Returns it with the name of the policy to ask.
async fn prepare(mut config: ServeConfig) -> anyhow::Result<(Server, String)> {
    let credentials = Credentials::read(&config)?;
    // A demo leaves nothing behind unless it is asked to.
    config.state.location.get_or_insert(StateLocation::None);
    let mut loaded = None;
    if config.retrieval.index.is_none() {
        let embedder = assembly::configured_embedder(&config)?;
        config.retrieval.index = Some(tokio::task::block_in_place(|| index(&config, &embedder))?);
        // The server uses the embedder as well, so it is not loaded twice.
        loaded = Some(embedder);
    }
    if wants_trained(&config) {
        let cache = cache::folder(config.model.cache.clone())?;
        config.policies.push(tokio::task::block_in_place(|| policy::unpack(&cache))?);
    }
    let model = match config.policies.first() {
        Some(dir) => Policy::open(dir)?.name,
        None => "routerag".to_owned(),
    };
    Ok((serve::bind(&config, credentials, loaded).await?, model))
}

/// Returns the index of the demo corpus; builds it if it is missing, does not fit the embedder, or was changed in an
/// earlier demo.
fn index(config: &ServeConfig, embedder: &Arc<Embedding>) -> anyhow::Result<PathBuf> {
    let dir = cache::folder(config.model.cache.clone())?.join("demo.index");
    // The name carries a checksum of what is in the index, so a program with another corpus builds another one.
    let contents = blake3::Hasher::new().update(CORPUS.as_bytes()).update(TRIPLES.as_bytes()).finalize();
    let name = format!("demo-{}", &contents.to_hex()[..12]);
    let documents = documents().context("cannot parse the corpus of the demo")?;
    let fits = |index: Index| index.manifest().corpus == name && holds_only(&index, &documents);
    if Index::open(&dir, Arc::clone(embedder) as _).is_ok_and(fits) {
        return Ok(dir);
    }
    let corpus = Corpus::from_documents(&name, documents);
    let bars = BuildBars::default();
    build(corpus, embedder.as_ref(), &dir, &BuildOptions { replace: true, ..BuildOptions::default() }, &bars)?;
    bars.clear();
    Ok(dir)
}

/// Returns `true` if `documents` are the passages of the index.
fn holds_only(index: &Index, documents: &[Document]) -> bool {
    let is_stored = |document: &Document| {
        let stored = index.passage(&document.id).ok().flatten();
        stored.is_some_and(|stored| stored.title == document.title && stored.text == document.text)
    };
    index.manifest().passages == documents.len() as u64 && documents.iter().all(is_stored)
}

/// Parses the documents of the demo with their triples.
fn documents() -> serde_json::Result<Vec<Document>> {
    let statements = TRIPLES.lines().map(serde_json::from_str).collect::<serde_json::Result<Vec<Statements>>>()?;
    let mut stated: HashMap<String, Vec<Triple>> = statements.into_iter().map(|line| (line.id, line.triples)).collect();
    CORPUS
        .lines()
        .map(|line| {
            let document: Document = serde_json::from_str(line)?;
            let triples = stated.remove(&document.id);
            Ok(Document { triples, ..document })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use waymark_index::{Changes, CommitOptions, commit};

    use super::*;

    #[test]
    fn changes_of_the_documents_end_with_a_demo() {
        #[derive(clap::Parser)]
        struct DemoCli {
            #[command(flatten)]
            args: Args,
        }
        let cache = tempfile::tempdir().unwrap();
        let flags = ["demo", "--mock", "--embedder", "mock", "--cache", cache.path().to_str().unwrap()];
        let config = <DemoCli as clap::Parser>::parse_from(flags).args.serve.resolve().unwrap();
        let embedder = assembly::configured_embedder(&config).unwrap();
        let open = || Index::open(&index(&config, &embedder).unwrap(), Arc::clone(&embedder) as _).unwrap();
        let first = open().manifest().snapshot;
        assert_eq!(open().manifest().snapshot, first, "built again without a change");
        let documents = documents().unwrap();
        let other = Document { text: "Another text.".to_owned(), ..documents[0].clone() };
        for changes in [Changes::delete([documents[0].id.clone()]), Changes::upsert([other])] {
            let dir = cache.path().join("demo.index");
            commit(&dir, embedder.as_ref(), changes, &CommitOptions::default(), &()).unwrap();
            assert!(holds_only(&open(), &documents));
        }
    }

    #[test]
    fn every_passage_of_the_demo_states_something() {
        for document in documents().unwrap() {
            assert!(document.triples.is_some_and(|triples| !triples.is_empty()), "{}", document.id);
        }
    }
}
