//! `waymark demo`: small weights, a small corpus, a server.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use waymark_index::{BuildOptions, Corpus, Document, Index, build};

use super::embedding::Embedding;
use super::index::Bars;
use super::{assembly, cache, logging, serve};
use crate::config::{ServeArgs, ServeConfig};
use crate::server::stop_signal;

/// The corpus of the demo, in the program itself so that it works from anywhere.
const CORPUS: &str = include_str!("../../demo/corpus.jsonl");

/// Tries everything at once: pulls the default weights, builds an index of a small corpus, and serves it.
///
/// The first start downloads about 180 MB and embeds the corpus; later ones take seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  waymark demo --port 8080")]
pub(crate) struct Args {
    #[command(flatten)]
    serve: ServeArgs,
}

impl Args {
    pub(crate) async fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", self.serve.log_format)?;
        let mut config = self.serve.resolve()?;
        let mut loaded = None;
        if config.retrieval.index.is_none() {
            let embedder = assembly::configured_embedder(&config)?;
            config.retrieval.index = Some(tokio::task::block_in_place(|| index(&config, &embedder))?);
            loaded = Some(embedder);
        }
        let server = serve::bind(&config, loaded).await?;
        let stop = stop_signal();
        let url = format!("http://{}", server.address());
        let mut out = io::stdout();
        writeln!(out, "listening on {url}\n")?;
        writeln!(out, "try, in another terminal:\n")?;
        writeln!(out, "  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{{")?;
        writeln!(out, "    \"model\": \"routerag\", \"stream\": true, \"rag\": {{\"trace\": true}},")?;
        writeln!(out, "    \"messages\": [{{\"role\": \"user\", \"content\": \"Who painted the Mona Lisa?\"}}]}}'\n")?;
        writeln!(out, "  waymark ask --url {url} \"Who painted the Mona Lisa?\"\n")?;
        writeln!(out, "Ctrl-C stops it.")?;
        Ok(server.run(stop).await?)
    }
}

/// The index of the demo corpus, built where it is missing or does not fit the embedder.
fn index(config: &ServeConfig, embedder: &Arc<Embedding>) -> anyhow::Result<PathBuf> {
    let dir = cache::folder(config.model.cache.clone())?.join("demo.index");
    // The name carries the corpus' own checksum, so that a program with another corpus builds another index.
    let name = format!("demo-{}", &blake3::hash(CORPUS.as_bytes()).to_hex()[..12]);
    if Index::open(&dir, Arc::clone(embedder) as _).is_ok_and(|index| index.manifest().corpus == name) {
        return Ok(dir);
    }
    let documents = CORPUS.lines().map(serde_json::from_str).collect::<Result<Vec<Document>, _>>();
    let corpus = Corpus::from_documents(&name, documents.context("the corpus of the demo is broken")?);
    let bars = Bars::default();
    build(corpus, embedder.as_ref(), &dir, &BuildOptions { replace: true, ..BuildOptions::default() }, &bars)?;
    bars.clear();
    Ok(dir)
}
