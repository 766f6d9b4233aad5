//! `waymark bench agent`: the same agentic loop over Waymark's server and over llama.cpp's `llama-server`.
//!
//! The loop runs in this process as it does in the server: prompt, tags, searches and budgets of RouteRAG. Its tokens
//! come from the server under test over HTTP.
//!
//! `schedule`: the tokens of a turn · `source`, `turn`: the loop's source of tokens · `server_kind`, `stream`: requests
//! · `process`: servers · `load`: clients · `report`: results

mod load;
mod process;
mod report;
mod schedule;
mod server_kind;
mod source;
mod stream;
mod turn;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use serde_json::json;
use tokio::task::block_in_place;
use waymark_agent::{Search, SearchLimits, Searcher};
use waymark_index::{Embed, Index, OpenOptions};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::{DEFAULT_MODEL, EmbedderArgs, Size, cores, local_index, or_cores};
use waymark_runtime::evaluate::Questions;
use waymark_runtime::query_embedder::QueryEmbedder;

use self::load::{ClientLoad, LoopParts};
use self::process::{ServerProcess, llama_version};
use self::report::{ClientsRow, HEAD, ServerSamples};
use self::schedule::TurnSchedule;
use self::server_kind::ServerKind;

/// Runs the same agentic loop over Waymark's server and over llama.cpp's `llama-server`, and compares them.
///
/// Starts the servers in turn, never at the same time. Both sample the number of tokens that --turns gives for each
/// turn, greedily and unguided, and the benchmark writes the tags and queries after them, so the load does not
/// depend on the model's text. Each client keeps one slot of `llama-server`, whose prompt cache is on.
///
/// Environment variables `WAYMARK_…` and `LLAMA_ARG_…` do not reach the servers: set their flags with --waymark-arg and
/// --llama-arg.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  waymark bench agent --index corpus.index --questions questions.jsonl \\
      --llama-server path/to/llama-server")]
pub(crate) struct Args {
    /// Base model: a name in the catalog, or a path to a GGUF file.
    #[arg(long, env = "WAYMARK_MODEL", default_value = DEFAULT_MODEL)]
    model: String,

    /// Directory of the index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR", value_parser = local_index())]
    index: PathBuf,

    /// File of questions, one JSON object with a `question` per line.
    #[arg(long, value_name = "FILE")]
    questions: PathBuf,

    /// Path to the `llama-server` program.
    #[arg(long, value_name = "FILE")]
    llama_server: PathBuf,

    /// Another GGUF file of the same model for `llama-server`. The default is the file of --model.
    #[arg(long, value_name = "FILE")]
    llama_model: Option<PathBuf>,

    /// Numbers of concurrent clients, each measured separately.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    clients: Vec<usize>,

    /// Number of questions per measurement; at least one per client.
    #[arg(long, default_value_t = 32)]
    count: usize,

    /// Number of measurements of each server.
    #[arg(long, default_value_t = 1)]
    rounds: usize,

    /// Number of tokens that each turn samples. All turns but the last one search.
    #[arg(long, value_name = "TOKENS,…", default_value = "64,64,32")]
    turns: TurnSchedule,

    /// Number of compute threads of the servers; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Maximum length of a sequence, in tokens. `llama-server` gets memory for one such sequence per client.
    #[arg(long, default_value_t = 2560)]
    context: usize,

    /// Memory for Waymark's KV cache.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    kv_bytes: Size,

    /// Further argument for `waymark serve`. May be given several times.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    waymark_arg: Vec<OsString>,

    /// Further argument for `llama-server`. May be given several times.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    llama_arg: Vec<OsString>,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.clients.is_empty() && self.clients.iter().all(|&clients| (1..=256).contains(&clients)),
            "--clients must be from 1 to 256"
        );
        ensure!(self.rounds > 0, "--rounds must be at least 1");
        let questions = Questions::texts(&self.questions)?;
        let (checkpoint, path) = block_in_place(|| assembly::checkpoint(&self.model, self.cache.clone()))?;
        ensure!(path.is_file(), "{} is not a GGUF file, which llama-server needs", path.display());
        let (searcher, embedder) = block_in_place(|| self.searcher())?;
        let load = ClientLoad::new(self.parts(checkpoint, searcher), questions, self.count);
        let mut rows = Vec::new();
        for &clients in &self.clients {
            let mut ours = ServerSamples::default();
            let mut theirs = ServerSamples::default();
            for round in 0..self.rounds {
                let mut turns = [(ServerKind::Waymark, &mut ours), (ServerKind::Llama, &mut theirs)];
                // The speed of a machine changes with time, so the servers take turns at being first.
                if round % 2 == 1 {
                    turns.reverse();
                }
                for (kind, samples) in turns {
                    self.measure(&load, kind, &path, clients, samples).await?;
                }
            }
            rows.push(ClientsRow::new(clients, ours.row(), theirs.row()));
        }
        self.print(&path, &embedder, &rows)
    }

    fn threads(&self) -> usize {
        or_cores(self.threads)
    }

    /// Opens the index as a server does, but without the cache of query vectors, where the second server would find the
    /// queries of the first. Returns its searcher and the ID of the embedder.
    fn searcher(&self) -> anyhow::Result<(Arc<dyn Search>, String)> {
        let threads = cores();
        let team = Arc::new(Team::new(threads));
        let embedder = assembly::embedder(&self.embedder.resolve_for(&self.index)?, self.cache.clone(), team)?;
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let embedder = QueryEmbedder::new(Arc::new(embedder), 0);
        let id = embedder.id().to_owned();
        let index = Index::open_with(&self.index, Arc::new(embedder), &options)?;
        let limits = SearchLimits { threads, waiting: assembly::SEARCHES_WAITING, ..SearchLimits::default() };
        Ok((Arc::new(Searcher::new(index, limits)?), id))
    }

    fn parts(&self, checkpoint: Checkpoint, searcher: Arc<dyn Search>) -> LoopParts {
        let Checkpoint { tokenizer, template, eos, .. } = checkpoint;
        LoopParts {
            tokenizer: Arc::new(tokenizer),
            template: template.map(Arc::new),
            eos,
            searcher,
            schedule: self.turns.clone(),
            context: self.context,
        }
    }

    /// Starts a server, measures it and stops it.
    async fn measure(
        &self,
        load: &ClientLoad,
        kind: ServerKind,
        model: &Path,
        clients: usize,
        samples: &mut ServerSamples,
    ) -> anyhow::Result<()> {
        let program = match kind {
            ServerKind::Waymark => env::current_exe()?,
            ServerKind::Llama => self.llama_server.clone(),
        };
        let mut server = block_in_place(|| ServerProcess::start(kind, &program, &self.flags(kind, model, clients)))?;
        load.run(kind, &server.url, clients, samples).await?;
        server.check()
    }

    /// Returns the flags of a server.
    fn flags(&self, kind: ServerKind, model: &Path, clients: usize) -> Vec<OsString> {
        let threads = self.threads().to_string();
        let bytes = self.kv_bytes.0.to_string();
        let context = self.context.to_string();
        let (flags, more): (Vec<&str>, _) = match kind {
            ServerKind::Waymark => {
                (vec!["serve", "--state", "none", "--kv-bytes", &bytes, "--context", &context], &self.waymark_arg)
            }
            ServerKind::Llama => (vec!["--threads-batch", &threads], &self.llama_arg),
        };
        let mut flags: Vec<OsString> = flags.into_iter().map(OsString::from).collect();
        let model = match (kind, &self.llama_model) {
            (ServerKind::Llama, Some(other)) => other.as_path(),
            _ => model,
        };
        flags.extend([OsString::from("--model"), model.into(), "--threads".into(), threads.into()]);
        if kind == ServerKind::Llama {
            // Its context is shared by the slots.
            let context = (self.context * clients).to_string();
            flags.extend(["--ctx-size", &context, "--parallel", &clients.to_string()].map(OsString::from));
        }
        flags.extend(more.iter().cloned());
        flags
    }

    fn print(&self, model: &Path, embedder: &str, rows: &[ClientsRow]) -> anyhow::Result<()> {
        let version = llama_version(&self.llama_server).unwrap_or_else(|| "unknown".to_owned());
        let mut out = io::stdout().lock();
        let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if self.json {
            let report = json!({
                "waymark_version": env!("CARGO_PKG_VERSION"),
                "llama_server_version": version,
                "model": name(model),
                "llama_model": name(self.llama_model.as_deref().unwrap_or(model)),
                "embedder": embedder,
                "turns": self.turns.tokens(),
                "threads": self.threads(),
                "context": self.context,
                "rounds": self.rounds,
                "rows": rows,
            });
            writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
            return Ok(());
        }
        let theirs = self.llama_model.as_deref().map_or_else(String::new, |other| format!(" ({} there)", name(other)));
        writeln!(
            out,
            "{}{theirs}, {} turns with {} sampled tokens and {} searches per question, greedy, {} threads, rounds: {}; \
             waymark {}, llama-server {version}\n",
            name(model),
            self.turns.turns(),
            self.turns.sampled(),
            self.turns.turns() - 1,
            self.threads(),
            self.rounds,
            env!("CARGO_PKG_VERSION"),
        )?;
        writeln!(out, "{HEAD}")?;
        rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
        Ok(())
    }
}
