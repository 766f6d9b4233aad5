//! `train show`: prints trajectories.

use std::io::Write;
use std::path::PathBuf;

use owo_colors::{OwoColorize, Style};
use waymark_agent::{EpisodeEnd, Policy, SegmentKind};
use waymark_engine::Origin;
use waymark_models::tokenizer::Tokenizer;
use waymark_runtime::config::{DEFAULT_MODEL, LogFormat};
use waymark_runtime::{assembly, logging, printable};

use crate::hash;
use crate::sample::{OriginRun, Sample};
use crate::sample_lines::SampleReader;

/// Prints trajectories in a readable form.
///
/// The prompt is dim, thoughts are italic, queries blue, answers green, and text from the environment is yellow.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  train show samples.jsonl                   the first trajectory
  train show samples.jsonl --n 5 --failed    the first five without a reward
  train show samples.jsonl --id 2wiki_train-93402dbc0bdb11eba7f7acde48001122-0")]
pub(crate) struct Args {
    /// Path to a file of samples.
    file: PathBuf,

    /// Maximum number of samples to print.
    #[arg(long, short, default_value_t = 1)]
    n: usize,

    /// Print only samples whose ID or question ID starts with this text.
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Print only samples of this data set.
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,

    /// Print only samples of this step.
    #[arg(long, value_name = "N")]
    step: Option<u64>,

    /// Print only samples without an answer or with a reward of at most 0.
    #[arg(long)]
    failed: bool,

    /// Omit the prompt.
    #[arg(long)]
    no_prompt: bool,

    /// Base model whose tokenizer decodes the tokens.
    #[arg(long, default_value = DEFAULT_MODEL, value_name = "NAME")]
    model: String,

    /// Directory for downloaded weights. Defaults to the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        logging::start(log, "warn", LogFormat::Text)?;
        let tokenizer = assembly::checkpoint(&self.model, self.cache.clone())?.0.tokenizer;
        // Token IDs of another vocabulary would decode to plausible nonsense.
        let vocabulary = hash::vocabulary(&tokenizer);
        let mut shown = 0;
        for sample in SampleReader::open(&self.file)? {
            let sample = sample?;
            if shown == self.n {
                break;
            }
            if self.wants(&sample) {
                let same = sample.tokenizer.as_ref().is_none_or(|own| *own == vocabulary);
                let id = &sample.id;
                let model = &self.model;
                anyhow::ensure!(
                    same,
                    "sample {id} was not made with the tokenizer of {model}: give its base model with --model"
                );
                print(&sample, &tokenizer, !self.no_prompt, &mut anstream::stdout())?;
                shown += 1;
            }
        }
        anyhow::ensure!(shown > 0, "{}: no sample matches the filters", self.file.display());
        Ok(())
    }

    fn wants(&self, sample: &Sample) -> bool {
        let named = |id: &String| sample.id.starts_with(id) || sample.question_id.starts_with(id);
        let lost = sample.answer.is_none() || sample.reward.as_ref().is_some_and(|reward| reward.total <= 0.0);
        self.id.as_ref().is_none_or(named)
            && self.dataset.as_ref().is_none_or(|name| sample.dataset == *name)
            && self.step.is_none_or(|step| sample.step == step)
            && (lost || !self.failed)
    }
}

/// Writes one sample.
fn print(sample: &Sample, tokenizer: &Tokenizer, prompt: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let step = if sample.step > 0 { format!(" · step {}", sample.step) } else { String::new() };
    writeln!(out, "{} {}", sample.id.bold(), format!("{}{step}", sample.dataset).dimmed())?;
    writeln!(out, "{} {}", "question".bold(), printable(&sample.question))?;
    writeln!(out, "{}    {}\n", "golds".bold(), printable(&sample.golds.join(" | ")))?;
    if let Some(branch) = &sample.branch {
        writeln!(out, "{} of {} from turn {} on\n", "branch".bold(), printable(&branch.of), branch.turn)?;
    }
    let mut at = 0;
    for &OriginRun(origin, length) in &sample.origins {
        // The reader has checked that the runs cover all tokens.
        let text = printable(&tokenizer.decode(&sample.tokens[at..at + length]));
        at += length;
        match origin {
            Origin::Prompt if prompt => write!(out, "{}", text.dimmed())?,
            Origin::Prompt => {}
            Origin::Environment => write!(out, "{}", text.yellow())?,
            Origin::Policy => turn(sample, &text, out)?,
        }
    }
    writeln!(out, "\n")?;
    evidence(sample, out)?;
    verdict(sample, out)?;
    Ok(writeln!(out, "{}\n", "─".repeat(80).dimmed())?)
}

/// Writes text of the policy, colored by its kind.
fn turn(sample: &Sample, text: &str, out: &mut impl Write) -> anyhow::Result<()> {
    // Samples may come from a protocol that this build does not have; the text is still worth reading.
    let Some(policy) = Policy::builtin(&sample.protocol) else { return Ok(write!(out, "{text}")?) };
    let mut at = 0;
    for span in policy.protocol.spans(text) {
        let style = match span.kind {
            SegmentKind::Think => Style::new().italic(),
            SegmentKind::Query => Style::new().blue().bold(),
            SegmentKind::Answer => Style::new().green().bold(),
            SegmentKind::Refusal => Style::new().red().bold(),
            SegmentKind::Text => Style::new().magenta(),
        };
        // Spans exclude their tags, so that the gaps between spans are the tags and loose text.
        let tag = &text[at..span.range.start];
        let inside = &text[span.range.clone()];
        write!(out, "{}{}", tag.cyan(), inside.style(style))?;
        at = span.range.end;
    }
    let rest = &text[at..];
    Ok(write!(out, "{}", rest.cyan())?)
}

fn evidence(sample: &Sample, out: &mut impl Write) -> anyhow::Result<()> {
    for found in &sample.evidence {
        let cached = if found.cached { " (again)" } else { "" };
        let withdrawn = found.withdrawn.map(|turn| format!(", withdrawn in turn {turn}")).unwrap_or_default();
        let hidden = if found.hidden.is_some() { " and hidden" } else { "" };
        let cost = format!("{:.1} ms{cached}{withdrawn}{hidden}", found.seconds * 1e3);
        writeln!(out, "{} {} {}", found.mode.to_string().blue(), printable(&found.query), cost.dimmed())?;
        for (id, score) in &found.passages {
            let gold = sample.supporting.contains(id);
            let mark = if gold { "✓".green().to_string() } else { " ".to_owned() };
            writeln!(out, "  {mark} {id} {}", format!("{score:.4}").dimmed())?;
        }
        for triple in &found.triples {
            writeln!(out, "    {}", printable(&triple.join(" · ")))?;
        }
        if let Some(error) = &found.error {
            writeln!(out, "  {}", printable(error).red())?;
        }
    }
    Ok(())
}

fn verdict(sample: &Sample, out: &mut impl Write) -> anyhow::Result<()> {
    let ended = match sample.finish {
        EpisodeEnd::Stop => "stop",
        EpisodeEnd::Length => "out of tokens",
        EpisodeEnd::Turns => "out of turns",
        EpisodeEnd::Time => "out of time",
        EpisodeEnd::Refused => "refused",
        EpisodeEnd::Called => "tool call",
    };
    let policy = sample.count(Origin::Policy);
    let environment = sample.count(Origin::Environment);
    let tokens = format!("{} prompt, {policy} policy, {environment} environment", sample.prompt_tokens);
    writeln!(out, "{} {}", "answer".bold(), printable(sample.answer.as_deref().unwrap_or("none")).green())?;
    writeln!(out, "{} {ended}; {} turns; tokens: {tokens}", "ended".bold(), sample.actions.len())?;
    if let Some(reward) = &sample.reward {
        let parts: Vec<String> = reward.parts.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
        writeln!(out, "{} {:.3} {}", "reward".bold(), reward.total, parts.join(", ").dimmed())?;
    }
    if let Some(advantage) = sample.advantage {
        writeln!(out, "{} {advantage:+.3}", "advantage".bold())?;
    }
    for preferred in &sample.preferred_to {
        let turn = if preferred.turn > 0 { format!(", from turn {} on", preferred.turn + 1) } else { String::new() };
        let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len().max(1) as f64;
        let ranked = preferred.scores.as_ref().map(|(own, other)| mean(own) - mean(other));
        let ranked = ranked.map_or_else(String::new, |ahead| format!(", by the ranker {ahead:+.3}"));
        writeln!(out, "{} to {}{turn}{ranked}", "preferred".bold(), preferred.to)?;
    }
    Ok(())
}
