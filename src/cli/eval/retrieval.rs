//! `waymark eval retrieval`: recall on questions with known supporting passages.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use waymark_agent::metric::quantile;
use waymark_index::{Index, IndexError, MAX_K, OpenOptions};
use waymark_models::kernel::Team;
use waymark_runtime::config::{EmbedderArgs, local_index, or_cores};
use waymark_runtime::evaluate::{Questions, ReportFile, RetrievalQuestion, SearchMethod};
use waymark_runtime::{assembly, progress};

use super::metric::{MeanScore, RankingScore};
use super::report::{MethodScores, RetrievalReport};

/// Measures the recall of supporting passages for each search method.
///
/// Each question is searched once at the largest cutoff and, with methods whose results depend on the number requested
/// (passage:fused, hybrid, kag), once more at each smaller cutoff; times are those of the largest. Recall is the share
/// of a question's supporting passages before each cutoff, averaged over questions. Questions with unknown or
/// incomplete support are left out and counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  waymark eval retrieval --index corpus.index --questions questions.jsonl \\
      --modes passage:bm25,graph,hybrid")]
pub(crate) struct Args {
    /// Directory of the index.
    #[arg(long, env = "WAYMARK_INDEX", value_name = "DIR", value_parser = local_index())]
    index: PathBuf,

    /// File of questions: JSON lines with `question`, `supporting` (IDs) and optionally `supporting_complete`.
    #[arg(long, value_name = "FILE")]
    questions: PathBuf,

    /// Cutoffs of the lists.
    #[arg(long, short, value_delimiter = ',', default_value = "1,2,5,10")]
    k: Vec<usize>,

    /// Search methods: a mode, optionally with a colon and a ranking (passage:bm25, passage:dense, passage:fused) or a
    /// variant of graph search (graph:route_rag, graph:hippo_rag, graph:graphrag_r1, graph:waymark). The default is all
    /// that the index offers.
    #[arg(long, value_delimiter = ',', value_name = "METHOD")]
    modes: Vec<SearchMethod>,

    /// Number of concurrent searches; 0 takes one per core. With more than one, times include waiting for each other.
    #[arg(long, default_value_t = 1)]
    threads: usize,

    /// File to write the report to, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    embedder: EmbedderArgs,

    /// Folder for downloaded weights. The default is the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        self.k.sort_unstable();
        self.k.dedup();
        let Some(&deepest) = self.k.last() else { anyhow::bail!("--k is empty") };
        ensure!(self.k[0] > 0 && deepest <= MAX_K, "--k must be from 1 to {MAX_K}");
        // Opened first, so a path that cannot be written fails before the measurement.
        let json = self.json.as_deref().map(ReportFile::open).transpose()?;
        let threads = or_cores(self.threads);
        let questions = Questions::read(&self.questions)?;
        // Searches run in parallel, so one thread for each embedding is enough.
        let embedder =
            assembly::embedder(&self.embedder.resolve_for(&self.index)?, self.cache.clone(), Arc::new(Team::new(1)))?;
        let options = OpenOptions { concurrency: threads, ..OpenOptions::default() };
        let index = Index::open_with(&self.index, Arc::new(embedder), &options)?;
        let methods = if self.modes.is_empty() { SearchMethod::defaults(index.modes()) } else { self.modes.clone() };
        let report = self.measure(&index, &questions, &methods, threads)?;
        // A failure to print must not lose the file, because the measurement is expensive.
        let printed = report.print(&mut std::io::stdout().lock());
        json.map_or(Ok(()), |json| json.fill(&report))?;
        Ok(printed?)
    }

    fn measure(
        &self,
        index: &Index,
        questions: &Questions,
        methods: &[SearchMethod],
        threads: usize,
    ) -> anyhow::Result<RetrievalReport> {
        let bar = progress::things();
        bar.set_length((methods.len() * questions.known.len()) as u64);
        let mut rows = Vec::new();
        for method in methods {
            bar.set_message(method.to_string());
            let (scores, milliseconds) = run(index, method, questions, &self.k, threads, &bar)
                .with_context(|| format!("{method} search of {}", self.index.display()))?;
            rows.push(measured(method, &MeanScore::of(&scores, self.k.len()), &self.k, milliseconds));
        }
        bar.finish_and_clear();
        let absent = |question: &RetrievalQuestion| -> Result<usize, IndexError> {
            question.supporting.iter().try_fold(0, |sum, id| Ok(sum + usize::from(index.passage(id)?.is_none())))
        };
        let missing = questions.known.iter().map(absent).sum::<Result<usize, _>>()?;
        let manifest = index.manifest();
        Ok(RetrievalReport {
            corpus: manifest.corpus.clone(),
            passages: manifest.passages,
            snapshot: manifest.snapshot,
            embedder: manifest.embedder.id.clone(),
            questions: questions.known.len(),
            left_out: questions.left_out,
            missing,
            threads,
            cuts: self.k.clone(),
            rows,
        })
    }
}

/// Searches for every question with one method, `threads` at a time. Returns the scores in question order and the times
/// of the searches in milliseconds.
fn run(
    index: &Index,
    method: &SearchMethod,
    questions: &Questions,
    cuts: &[usize],
    threads: usize,
    bar: &ProgressBar,
) -> Result<(Vec<RankingScore>, Vec<f64>), IndexError> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, RankingScore, f64)>, IndexError> {
        let mut done = Vec::new();
        while let Some((position, question)) = take(&next, &questions.known) {
            // The deepest cutoff is searched last, so its time is the one recorded.
            let mut milliseconds = 0.0;
            let search = |k| {
                let query = method.query(&question.text, k);
                let started = Instant::now();
                let evidence = index.search(&query)?;
                milliseconds = started.elapsed().as_secs_f64() * 1e3;
                Ok(evidence.hits.into_iter().map(|hit| hit.passage.id).collect())
            };
            let score = RankingScore::searched(&question.supporting, cuts, method.depends_on_k(), search)?;
            done.push((position, score, milliseconds));
            bar.inc(1);
        }
        Ok(done)
    };
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            // A panic in a worker is a bug and is passed on.
            all.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<_, IndexError>(all)
    })?;
    all.sort_by_key(|&(position, ..)| position);
    Ok(all.into_iter().map(|(_, score, milliseconds)| (score, milliseconds)).unzip())
}

/// Takes the next item, with its position.
fn take<'a, T>(next: &AtomicUsize, items: &'a [T]) -> Option<(usize, &'a T)> {
    let position = next.fetch_add(1, Ordering::Relaxed);
    items.get(position).map(|item| (position, item))
}

fn measured(method: &SearchMethod, mean: &MeanScore, cuts: &[usize], mut milliseconds: Vec<f64>) -> MethodScores {
    let by_cut = |values: &[f64]| cuts.iter().copied().zip(values.iter().copied()).collect();
    let total: f64 = milliseconds.iter().sum();
    MethodScores {
        method: method.to_string(),
        recall: by_cut(&mean.recall),
        all_found: by_cut(&mean.all),
        mrr: mean.mrr,
        milliseconds: total / milliseconds.len().max(1) as f64,
        milliseconds_p50: quantile(&mut milliseconds, 0.5),
        milliseconds_p95: quantile(&mut milliseconds, 0.95),
    }
}
