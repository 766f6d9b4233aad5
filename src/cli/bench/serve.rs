//! `waymark bench serve`: concurrent questions over HTTP against a running server.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use serde::Serialize;
use serde_json::json;
use waymark_agent::Event;
use waymark_agent::metric::quantile;
use waymark_runtime::evaluate::Questions;

use super::parallel::in_parallel;
use crate::cli::client::{self, Client};
use crate::config::TypedKey;

/// Sends concurrent questions to a server and prints throughput and latency.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  waymark serve --index corpus.index &\n  waymark bench serve --questions questions.jsonl --clients 8"
)]
pub(crate) struct Args {
    /// URL of the server.
    #[arg(long, env = "WAYMARK_URL", value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = client::server_url)]
    url: String,

    /// File of CA certificates (PEM) to trust instead of the public ones when the server uses HTTPS.
    #[arg(long, env = "WAYMARK_CA", value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Name of the policy to ask.
    #[arg(long, default_value = "routerag")]
    model: String,

    /// File of questions, one JSON object with a `question` per line. The default is a few built-in ones.
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,

    /// Total number of questions.
    #[arg(long, default_value_t = 32)]
    count: usize,

    /// Number of concurrent questions.
    #[arg(long, default_value_t = 8)]
    clients: usize,

    /// Maximum number of tokens the policy writes per question.
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,

    /// API key of the server, with the scopes `infer` and `admin`.
    #[arg(long, env = "WAYMARK_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<TypedKey>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Timing of one episode.
#[derive(Debug, Default)]
struct EpisodeTiming {
    first: f64,
    answer: f64,
    tokens: usize,
    searches: usize,
    answered: bool,
}

/// Results of the run. Times are in seconds.
#[derive(Debug, Serialize)]
struct ServeReport {
    questions: usize,
    clients: usize,
    answered: usize,
    seconds: f64,
    questions_per_second: f64,
    tokens_per_second: f64,
    searches: usize,
    first_token_p50: f64,
    first_token_p95: f64,
    answer_p50: f64,
    answer_p95: f64,
    prefill_tokens: f64,
    prefill_tokens_recomputed: f64,
    prefix_cache_hit_tokens: f64,
}

const BUILT_IN: [&str; 4] = [
    "Who painted the Mona Lisa?",
    "In which city is the museum that shows the Mona Lisa?",
    "Which river flows through Paris?",
    "Who discovered radium?",
];

/// Maximum number of clients, each of which takes a thread.
const MAX_CLIENTS: usize = 500;

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        ensure!(self.clients > 0 && self.count > 0, "--clients and --count must be at least 1");
        // Each client blocks one of the runtime's 512 threads. Further clients would wait for a thread, and that wait
        // would count as the server's time.
        ensure!(self.clients <= MAX_CLIENTS, "--clients must be at most {MAX_CLIENTS}");
        let questions = Arc::new(self.questions()?);
        let key = self.api_key.as_ref().map(TypedKey::secret).transpose()?;
        let client = Client::new(&self.url).with_key(key).trusting(self.ca.as_deref())?;
        let before = client.text("/metrics").await?;
        let asked = client.clone();
        let model = self.model.clone();
        let max_tokens = self.max_tokens;
        let start = Instant::now();
        let timings = in_parallel(self.clients, 0..self.count, move |_, number| {
            let client = asked.clone();
            let questions = Arc::clone(&questions);
            let model = model.clone();
            async move {
                let question = &questions[number % questions.len()];
                // Questions have seeds of their own, the same in every run.
                ask(&client, &model, question, max_tokens, number).await
            }
        })
        .await?;
        let seconds = start.elapsed().as_secs_f64();
        let after = client.text("/metrics").await?;
        self.print(&report(&timings, self.clients, seconds, &before, &after))
    }

    fn questions(&self) -> anyhow::Result<Vec<String>> {
        let Some(file) = &self.questions else {
            return Ok(BUILT_IN.map(str::to_owned).to_vec());
        };
        Questions::texts(file)
    }

    fn print(&self, report: &ServeReport) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
            return Ok(());
        }
        writeln!(
            out,
            "{} questions, {} at a time, policy {}, {}",
            report.questions, report.clients, self.model, self.url
        )?;
        writeln!(out, "  answered            {:>9}", report.answered)?;
        writeln!(out, "  questions/s         {:>9.2}", report.questions_per_second)?;
        writeln!(out, "  written tokens/s    {:>9.1}", report.tokens_per_second)?;
        writeln!(out, "  searches            {:>9}", report.searches)?;
        writeln!(out, "  first token    p50  {:>9.3} s   p95 {:.3} s", report.first_token_p50, report.first_token_p95)?;
        writeln!(out, "  answer         p50  {:>9.3} s   p95 {:.3} s", report.answer_p50, report.answer_p95)?;
        writeln!(out, "  prefilled tokens    {:>9}", report.prefill_tokens)?;
        writeln!(out, "  from prefix cache   {:>9}", report.prefix_cache_hit_tokens)?;
        writeln!(out, "  recomputed tokens   {:>9}", report.prefill_tokens_recomputed)?;
        Ok(())
    }
}

/// Asks one question and times its events.
async fn ask(
    client: &Client,
    model: &str,
    question: &str,
    max_tokens: usize,
    seed: usize,
) -> anyhow::Result<EpisodeTiming> {
    let request = json!({
        "model": model, "question": question, "stream": true, "max_tokens": max_tokens, "seed": seed,
    });
    let start = Instant::now();
    let mut timing = EpisodeTiming::default();
    client
        .episode(&request, |event| {
            let now = start.elapsed().as_secs_f64();
            match event {
                Event::Think { .. } | Event::Query { .. } | Event::Answer { .. } | Event::Text { .. }
                    if timing.first == 0.0 =>
                {
                    timing.first = now;
                }
                Event::Finished { usage, searches, answer, .. } => {
                    timing.answer = now;
                    timing.tokens = usage.completion_tokens;
                    timing.searches = searches;
                    timing.answered = answer.is_some();
                }
                _ => {}
            }
            Ok(())
        })
        .await?;
    ensure!(timing.answer > 0.0, "the episode ended without a `finished` event");
    Ok(timing)
}

fn report(timings: &[EpisodeTiming], clients: usize, seconds: f64, before: &str, after: &str) -> ServeReport {
    let mut first: Vec<f64> = timings.iter().map(|timing| timing.first).collect();
    let mut answer: Vec<f64> = timings.iter().map(|timing| timing.answer).collect();
    let tokens: usize = timings.iter().map(|timing| timing.tokens).sum();
    // The counters run since the server's start, so only their growth belongs to this run.
    let grown = |name: &str| metric(after, name) - metric(before, name);
    ServeReport {
        questions: timings.len(),
        clients,
        answered: timings.iter().filter(|timing| timing.answered).count(),
        seconds,
        questions_per_second: timings.len() as f64 / seconds,
        tokens_per_second: tokens as f64 / seconds,
        searches: timings.iter().map(|timing| timing.searches).sum(),
        first_token_p50: quantile(&mut first, 0.5),
        first_token_p95: quantile(&mut first, 0.95),
        answer_p50: quantile(&mut answer, 0.5),
        answer_p95: quantile(&mut answer, 0.95),
        prefill_tokens: grown("waymark_prefill_tokens_total"),
        prefill_tokens_recomputed: grown("waymark_prefill_tokens_recomputed_total"),
        prefix_cache_hit_tokens: grown("waymark_prefix_cache_hit_tokens_total"),
    }
}

/// Returns the value of a counter in Prometheus text; 0 if it is missing.
fn metric(text: &str, name: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::metric;

    #[test]
    fn a_counter_is_read_by_its_whole_name() {
        let text = "# HELP a_total x\na_total 3\na_total_more 4\n";
        assert_eq!(metric(text, "a_total"), 3.0);
        assert_eq!(metric(text, "a"), 0.0);
    }
}
