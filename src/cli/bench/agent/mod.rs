//! `waymark bench agent`: the same agentic loop over Waymark's server and over llama.cpp's `llama-server`.
//!
//! The loop runs in this process as it does in the server: prompt, tags, searches and budgets of RouteRAG. Its tokens come
//! from the server under test over HTTP.
//!
//! `schedule`: the tokens of a turn · `source`, `turn`: the loop's source of tokens · `wire`, `stream`: requests ·
//! `process`: servers · `load`: clients · `report`: results

mod load;
mod process;
mod report;
mod schedule;
mod source;
mod stream;
mod turn;
mod wire;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use serde_json::json;
use tokio::task::block_in_place;
use waymark_agent::{Search, SearchLimits, Searcher};
use waymark_index::{Index, OpenOptions};
use waymark_models::checkpoint::Checkpoint;
use waymark_models::kernel::Team;
use waymark_runtime::assembly;
use waymark_runtime::config::{EmbedderArgs, cores};
use waymark_runtime::evaluate::Questions;

use self::load::{ClientLoad, LoopParts};
use self::process::{ServerProcess, llama_version};
use self::report::{ClientsRow, HEAD, ServerSamples};
use self::schedule::TurnSchedule;
use self::wire::Wire;

/// Runs the same agentic loop over Waymark's server and over llama.cpp's `llama-server`, and compares them.
///
/// Both servers are started by turns, never at once, and sample the same number of tokens at the same places of the loop:
/// --turns says how many in each turn, and the benchmark writes the tags and queries after them. So the load does not depend
/// on the model's text, which is not judged. Sampling is greedy and unguided. Each client keeps one slot of `llama-server`,
/// whose prompt cache is on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  waymark bench agent --index corpus.index --questions questions.jsonl --llama-server path/to/llama-server")]
pub(crate) struct Args {
    /// Base model: a name in the catalog, or a path to a GGUF file.
    #[arg(long, env = "WAYMARK_MODEL", default_value = "smollm2-135m-instruct")]
    model: String,

    /// Directory of the index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR")]
    index: PathBuf,

    /// File of questions, one JSON object with a `question` per line.
    #[arg(long, value_name = "FILE")]
    questions: PathBuf,

    /// Path to the `llama-server` program.
    #[arg(long, value_name = "FILE")]
    llama_server: PathBuf,

    /// Another GGUF file of the same model for `llama-server`.
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

    /// Maximum length of a sequence, in tokens. `llama-server` gets the memory for one of these per client.
    #[arg(long, default_value_t = 2560)]
    context: usize,

    /// Memory for Waymark's KV cache.
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    kv_bytes: String,

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
        let searcher = block_in_place(|| self.searcher())?;
        let load = ClientLoad::new(self.parts(checkpoint, searcher), questions, self.count);
        let mut rows = Vec::new();
        for &clients in &self.clients {
            let mut ours = ServerSamples::default();
            let mut theirs = ServerSamples::default();
            for _ in 0..self.rounds {
                self.measure(&load, Wire::Waymark, &path, clients, &mut ours).await?;
                self.measure(&load, Wire::Llama, &path, clients, &mut theirs).await?;
            }
            rows.push(ClientsRow::new(clients, ours.row(), theirs.row()));
        }
        self.print(&path, &rows)
    }

    fn threads(&self) -> usize {
        if self.threads == 0 { cores() } else { self.threads }
    }

    fn searcher(&self) -> anyhow::Result<Arc<dyn Search>> {
        let threads = cores();
        let embedder = assembly::embedder(&self.embedder.resolve()?, self.cache.clone(), Arc::new(Team::new(1)))?;
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let index = Index::open_with(&self.index, Arc::new(embedder), &options)?;
        let limits = SearchLimits { threads, waiting: assembly::SEARCHES_WAITING, ..SearchLimits::default() };
        Ok(Arc::new(Searcher::new(index, limits)?))
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
        wire: Wire,
        model: &Path,
        clients: usize,
        samples: &mut ServerSamples,
    ) -> anyhow::Result<()> {
        let program = match wire {
            Wire::Waymark => env::current_exe()?,
            Wire::Llama => self.llama_server.clone(),
        };
        let server = block_in_place(|| ServerProcess::start(wire, &program, &self.flags(wire, model, clients)))?;
        load.run(wire, &server.url, clients, samples).await
    }

    /// Returns the flags of a server.
    fn flags(&self, wire: Wire, model: &Path, clients: usize) -> Vec<OsString> {
        let threads = self.threads().to_string();
        let (flags, more): (Vec<&str>, _) = match wire {
            Wire::Waymark => (vec!["serve", "--state", "none", "--kv-bytes", &self.kv_bytes], &self.waymark_arg),
            Wire::Llama => (vec!["--threads-batch", &threads], &self.llama_arg),
        };
        let mut flags: Vec<OsString> = flags.into_iter().map(OsString::from).collect();
        let model = match (wire, &self.llama_model) {
            (Wire::Llama, Some(other)) => other.as_path(),
            _ => model,
        };
        flags.extend([OsString::from("--model"), model.into(), "--threads".into(), threads.into()]);
        if wire == Wire::Llama {
            // Its context is shared by the slots.
            let context = (self.context * clients).to_string();
            flags.extend(["--ctx-size", &context, "--parallel", &clients.to_string()].map(OsString::from));
        }
        flags.extend(more.iter().cloned());
        flags
    }

    fn print(&self, model: &Path, rows: &[ClientsRow]) -> anyhow::Result<()> {
        let version = llama_version(&self.llama_server).unwrap_or_else(|| "unknown".to_owned());
        let mut out = io::stdout().lock();
        if self.json {
            let report = json!({ "llama_server_version": version, "rows": rows });
            writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
            return Ok(());
        }
        let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
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
