//! `waymark bench engine`: decode and prefill rates on this machine, optionally compared with llama.cpp.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use waymark_agent::metric::quantile;
use waymark_engine::{CpuBackend, Engine, EngineConfig, Generate, KvBudget, Origin, Session, SessionOptions};
use waymark_models::Arithmetic;
use waymark_models::decoder::{Decoder, KvKind};
use waymark_models::kernel::Team;
use waymark_models::sampler::SamplingParams;
use waymark_runtime::assembly;
use waymark_runtime::config::{DEFAULT_MODEL, or_cores};

use super::llama;

/// Measures decode and prefill rates of the engine.
///
/// Every sequence gets its own prompt (random tokens, so no prefix is shared) and decodes greedily. Prefill lasts
/// from the first request until every sequence has its first token, decode from there to the end, as in
/// `llama-batched-bench`. With --llama, the two programs run alternately, never at the same time; rates are medians
/// over the rounds.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark bench engine --model smollm2-135m-instruct --sequences 1,8
  waymark bench engine --llama path/to/llama-batched-bench --rounds 3")]
pub(crate) struct Args {
    /// Base model: a name in the catalog, a path, or a hub ID.
    #[arg(long, env = "WAYMARK_MODEL", default_value = DEFAULT_MODEL)]
    model: String,

    /// Numbers of sequences to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    sequences: Vec<usize>,

    /// Prompt tokens per sequence.
    #[arg(long, default_value_t = 128)]
    prompt: usize,

    /// Tokens decoded per sequence.
    #[arg(long, default_value_t = 64)]
    tokens: usize,

    /// Number of measurements of each rate.
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Number of compute threads; 0 takes one per core.
    #[arg(long, env = "WAYMARK_THREADS", default_value_t = 0)]
    threads: usize,

    /// Arithmetic of matrix multiplications with the layers' weights: `f32`, `bf16` or `int16`. The default is int16 for
    /// K-quants and f32 for all other weights.
    #[arg(long, env = "WAYMARK_ARITHMETIC", value_name = "ARITHMETIC")]
    arithmetic: Option<Arithmetic>,

    /// Precision of the KV cache: `f32`, `f16` or `int8`. The default is `f32` with the arithmetic `f32` and `f16` with
    /// the others.
    #[arg(long, env = "WAYMARK_KV", value_name = "PRECISION")]
    kv: Option<KvKind>,

    /// Path to a `llama-batched-bench` program to compare with, on the same GGUF file and with as many threads.
    #[arg(long, value_name = "FILE")]
    llama: Option<PathBuf>,

    /// Other GGUF files of the same model for llama.cpp; its best rate counts.
    #[arg(long, value_name = "FILE", requires = "llama")]
    llama_model: Vec<PathBuf>,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Rates at one number of sequences, in tokens per second over all sequences.
#[derive(Debug, Serialize)]
struct EngineRates {
    sequences: usize,
    prefill: f64,
    decode: f64,
    llama_prefill: Option<f64>,
    llama_decode: Option<f64>,
}

/// Rates of prefill and decode in each round.
#[derive(Debug, Default)]
struct RateSamples {
    prefill: Vec<f64>,
    decode: Vec<f64>,
}

impl RateSamples {
    fn push(&mut self, (prefill, decode): (f64, f64)) {
        self.prefill.push(prefill);
        self.decode.push(decode);
    }

    fn medians(&mut self) -> (f64, f64) {
        (quantile(&mut self.prefill, 0.5), quantile(&mut self.decode, 0.5))
    }
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        ensure!(
            // The decode rate is measured from the first token to the last, so it takes two.
            self.prompt > 0 && self.tokens > 1 && self.rounds > 0,
            "--prompt and --rounds must be at least 1, --tokens at least 2"
        );
        let threads = or_cores(self.threads);
        let (checkpoint, path) = assembly::checkpoint(&self.model, self.cache.clone())?;
        let arithmetic = self.arithmetic.unwrap_or_else(|| Arithmetic::suited_to(&checkpoint.weights));
        let kv = self.kv.unwrap_or(KvKind::suited_to(arithmetic));
        let decoder = Decoder::load_with(&checkpoint.weights, Arc::new(Team::new(threads)), arithmetic)?;
        let vocab = decoder.config().vocab;
        let most = self.sequences.iter().copied().max().context("--sequences is empty")?;
        let blocks = most * (self.prompt + self.tokens).div_ceil(waymark_models::BLOCK) + 1;
        let generation = checkpoint.weights.generation();
        let backend = CpuBackend::with_kv(decoder, &checkpoint.name, generation, KvBudget::Blocks(blocks), kv)?;
        let config = EngineConfig { max_batch_rows: most, ..EngineConfig::default() };
        let engine = Engine::start(Box::new(backend), config, checkpoint.tokenizer.table())?;
        let mut out = io::stdout();
        let mut files = vec![path];
        files.extend(self.llama_model.iter().cloned());
        if !self.json {
            writeln!(
                out,
                "{}, {arithmetic}, KV in {kv}, {threads} threads, {} + {} tokens per sequence, median of {} rounds; tokens per second",
                checkpoint.name, self.prompt, self.tokens, self.rounds
            )?;
            writeln!(out, "{:>9} {:>9} {:>9}{}", "sequences", "prefill", "decode", self.llama_head())?;
        }
        let mut lines = Vec::new();
        // The same prompts in every run, and random ones, so the prefix cache finds nothing.
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for &sequences in &self.sequences {
            let line = self.measure(&engine, sequences, threads, vocab, &files, &mut random).await?;
            if !self.json {
                writeln!(out, "{:>9} {:>9.1} {:>9.1}{}", line.sequences, line.prefill, line.decode, line.peer())?;
            }
            lines.push(line);
        }
        engine.shutdown().await;
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&lines)?)?;
        }
        Ok(())
    }

    fn llama_head(&self) -> &'static str {
        if self.llama.is_some() { "  llama.cpp: prefill    decode   ratio: prefill  decode" } else { "" }
    }

    async fn measure(
        &self,
        engine: &Engine,
        sequences: usize,
        threads: usize,
        vocab: usize,
        files: &[PathBuf],
        random: &mut ChaCha8Rng,
    ) -> anyhow::Result<EngineRates> {
        let mut ours = RateSamples::default();
        let mut peers: Vec<RateSamples> = files.iter().map(|_| RateSamples::default()).collect();
        // Rounds alternate, so a change of the machine's speed meets both.
        for _ in 0..self.rounds {
            ours.push(self.round(engine, sequences, vocab, random).await?);
            let Some(binary) = &self.llama else { continue };
            for (file, peer) in files.iter().zip(&mut peers) {
                let row = llama::run(binary, file, threads, self.prompt, self.tokens, sequences)?;
                peer.push((row.prefill, row.decode));
            }
        }
        let (prefill, decode) = ours.medians();
        // The best of the peer's files counts, separately for prefill and decode.
        let best = self.llama.as_ref().map(|_| {
            let medians = peers.iter_mut().map(RateSamples::medians);
            medians.fold((0.0_f64, 0.0_f64), |best, peer| (best.0.max(peer.0), best.1.max(peer.1)))
        });
        Ok(EngineRates {
            sequences,
            prefill,
            decode,
            llama_prefill: best.map(|best| best.0),
            llama_decode: best.map(|best| best.1),
        })
    }

    /// Runs all sequences once and returns the rates of prefill and decode.
    async fn round(
        &self,
        engine: &Engine,
        sequences: usize,
        vocab: usize,
        random: &mut ChaCha8Rng,
    ) -> anyhow::Result<(f64, f64)> {
        let start = Instant::now();
        let running: Vec<_> = (0..sequences)
            .map(|_| {
                let prompt: Vec<u32> = (0..self.prompt).map(|_| random.random_range(0..vocab as u32)).collect();
                let mut session = engine.session(SessionOptions::default());
                session.append(&prompt, Origin::Prompt, false);
                tokio::spawn(decode(session, self.tokens))
            })
            .collect();
        let mut first = start;
        let mut last = start;
        for sequence in running {
            let times = sequence.await??;
            first = first.max(times.0);
            last = last.max(times.1);
        }
        let prefill = (sequences * self.prompt) as f64 / (first - start).as_secs_f64();
        let decode = (sequences * (self.tokens - 1)) as f64 / (last - first).as_secs_f64();
        Ok((prefill, decode))
    }
}

impl EngineRates {
    fn peer(&self) -> String {
        let (Some(prefill), Some(decode)) = (self.llama_prefill, self.llama_decode) else { return String::new() };
        format!("  {prefill:>18.1} {decode:>9.1} {:>16.2} {:>7.2}", self.prefill / prefill, self.decode / decode)
    }
}

/// Decodes `tokens` tokens and returns the times of the first and the last.
async fn decode(mut session: Session, tokens: usize) -> anyhow::Result<(Instant, Instant)> {
    let generate =
        // Random prompts may lead to an early end, which would leave fewer tokens than are counted.
        Generate { sampling: SamplingParams::greedy(), max_tokens: tokens, ignore_eos: true, ..Generate::default() };
    let mut turn = session.generate(generate).await?;
    let mut first = None;
    let mut last = Instant::now();
    while let Some(step) = turn.next().await {
        step?;
        last = Instant::now();
        first.get_or_insert(last);
    }
    Ok((first.context("the engine produced no token")?, last))
}
