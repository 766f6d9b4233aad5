//! `train keep`: selects trajectories worth imitating.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use waymark_models::durable_file;
use waymark_runtime::assembly;
use waymark_runtime::config::DEFAULT_MODEL;

use crate::data::scripted;
use crate::decline_writer::DeclineWriter;
use crate::hash;
use crate::mode_table::{MIN_TRAJECTORIES, ModeTable};
use crate::sample::Sample;
use crate::sample_filter::SampleFilter;
use crate::sample_lines;

/// Selects a policy's own trajectories, for imitation.
///
/// A trajectory is kept if the policy gave a gold answer without being forced to answer, if every turn was valid, and
/// if no search was repeated. `train sft` trains on the kept trajectories like on any others, so that the next policy
/// does more often what an earlier one found by chance. With --wrong the answer need not be gold: this teaches a policy
/// that goes round in circles to finish. With --decline the answers are those that the policy made up, and a plain
/// statement takes their place: this teaches it to say that it found nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train keep runs/stage1/samples.jsonl --dataset 2wiki_train --searches 2-3 \\
      --out kept.jsonl
  train keep runs/stage1/samples.jsonl --decline --out declined.jsonl
  train sft --recipe training/recipes/routerag-smollm2.toml --init runs/sft \\
      --data kept.jsonl --data declined.jsonl --out runs/kept")]
pub(crate) struct Args {
    /// Files of samples written by `train rollout` or `train grpo`.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// File to write the kept trajectories to, one per line.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Keep only trajectories of this data set. May be repeated.
    #[arg(long, value_name = "NAME")]
    dataset: Vec<String>,

    /// Keep only trajectories with this number of searches: `2`, or a range such as `1-3`.
    #[arg(long, value_name = "N", default_value = "1-8", value_parser = range)]
    searches: RangeInclusive<usize>,

    /// Also keep wrong answers that the policy gave and closed without being forced to. Right answers to the same
    /// question take precedence.
    #[arg(long)]
    wrong: bool,

    /// Keep wrong answers instead, where nothing that the policy was shown contains a gold answer, and replace the last
    /// turn by a statement that nothing was found.
    #[arg(long, conflicts_with_all = ["wrong", "contested", "by_kind"])]
    decline: bool,

    /// Base model whose tokenizer writes the statements of --decline.
    #[arg(long, default_value = DEFAULT_MODEL, value_name = "NAME")]
    model: String,

    /// Directory for downloaded weights. Defaults to the user's cache directory.
    #[arg(long, env = "WAYMARK_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Keep only trajectories of contested questions: those with at least one other trajectory that would not be kept,
    /// even if --searches allowed any number and --by-kind any mode.
    #[arg(long)]
    contested: bool,

    /// Keep only trajectories that begin in the best mode for their kind of question (`type` of the question files): the
    /// mode in which most trajectories of the kind are right. Modes that `grpo.first_modes` wrote become the policy's
    /// own, so that imitation teaches it to choose. Prints the table by which the modes were chosen.
    #[arg(long)]
    by_kind: bool,

    /// Maximum number of trajectories per question.
    #[arg(long, value_name = "N", default_value_t = 2)]
    per_question: usize,

    /// Seed of the choice among the trajectories of a question that exceed --per-question, and of the words of --decline.
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // Kept trajectories take hours of rollouts; they are never overwritten.
        ensure!(!self.out.exists(), "{} already exists: give another file", self.out.display());
        let mut samples = Vec::new();
        for file in &self.files {
            samples.extend(sample_lines::read(file)?);
        }
        self.check_datasets(&samples)?;
        samples.retain(|sample| self.dataset.is_empty() || self.dataset.contains(&sample.dataset));
        let total = samples.len();
        let modes = if self.by_kind { Some(mode_table(&samples)?) } else { None };
        if self.decline {
            self.replace_answers(&mut samples)?;
        }
        // Copied before the range moves into the filter, for the error message.
        let least = *self.searches.start();
        let most = *self.searches.end();
        let sieve = SampleFilter {
            searches: self.searches,
            wrong: self.wrong || self.decline,
            contested: self.contested,
            modes,
            per_question: self.per_question,
            seed: self.seed,
        };
        let kept = sieve.keep(&samples);
        let end = match (self.wrong, self.decline) {
            (_, true) => "was wrong on evidence without a gold answer (--decline), and finished",
            (true, false) => "finished",
            (false, false) => "was right",
        };
        let among = if self.contested {
            " and belongs to a question with another trajectory that would not be kept (--contested)"
        } else {
            ""
        };
        let mode = if self.by_kind { ", in the mode of its kind of question (--by-kind)" } else { "" };
        ensure!(
            !kept.is_empty(),
            "none of the {total} trajectories {end} without being forced, with {least} to {most} searches (--searches){mode}{among}"
        );
        if self.by_kind {
            kept.iter().for_each(|&at| samples[at].adopt_modes());
        }
        let written = durable_file::replace_with(&self.out, |file| {
            kept.iter().try_for_each(|&at| {
                serde_json::to_writer(&mut *file, &samples[at])?;
                file.write_all(b"\n")
            })
        });
        written.with_context(|| format!("cannot write {}", self.out.display()))?;
        anstream::println!("kept {} of {total} trajectories: {}", kept.len(), self.out.display());
        Ok(())
    }

    /// Keeps only answers that the policy made up, and replaces them by statements that nothing was found.
    fn replace_answers(&self, samples: &mut Vec<Sample>) -> anyhow::Result<()> {
        let (checkpoint, _) = assembly::checkpoint(&self.model, self.cache.clone())?;
        let vocabulary = hash::vocabulary(&checkpoint.tokenizer);
        let foreign = samples.iter().find(|sample| sample.tokenizer.as_ref().is_some_and(|own| *own != vocabulary));
        if let Some(sample) = foreign {
            bail!(
                "the trajectory {:?} has another vocabulary than --model {}: give the base model of its policy",
                sample.id,
                self.model
            );
        }
        let turn_end = scripted::turn_end(&checkpoint.tokenizer, checkpoint.template.as_ref(), &checkpoint.eos);
        let writer = DeclineWriter { tokenizer: &checkpoint.tokenizer, turn_end, seed: self.seed };
        samples.retain(|sample| writer.applies(sample));
        Ok(samples.iter_mut().try_for_each(|sample| writer.rewrite(sample))?)
    }

    /// Fails if --dataset names a data set without trajectories.
    fn check_datasets(&self, samples: &[Sample]) -> anyhow::Result<()> {
        let existing: BTreeSet<&str> = samples.iter().map(|sample| sample.dataset.as_str()).collect();
        // A misspelled name would otherwise look like a strict filter.
        let absent = self.dataset.iter().find(|name| !existing.contains(name.as_str()));
        absent.map_or(Ok(()), |name| {
            let existing = existing.iter().copied().collect::<Vec<_>>().join(", ");
            bail!("--dataset {name}: no trajectory belongs to it: the files hold trajectories of {existing}")
        })
    }
}

/// Chooses the best mode for each kind of question, and prints the table of all modes.
fn mode_table(samples: &[Sample]) -> anyhow::Result<ModeTable> {
    let table = ModeTable::of(samples);
    anstream::println!("{table}");
    ensure!(
        samples.iter().any(|sample| table.agrees(sample)),
        "--by-kind: no kind of question has two modes that begin at least {MIN_TRAJECTORIES} trajectories each: \
         give the questions a `type`, and the rollouts `grpo.first_modes`"
    );
    Ok(table)
}

/// Parses a number such as `2`, or a range such as `1-3`.
fn range(text: &str) -> anyhow::Result<RangeInclusive<usize>> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<usize>().with_context(|| format!("not a number: {text:?}"));
    let least = number(least)?;
    let most = number(most)?;
    ensure!(least <= most, "the range {least}-{most} is empty");
    Ok(least..=most)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;
    use waymark_agent::Action;
    use waymark_engine::Origin;
    use waymark_index::Mode;

    use super::*;
    use crate::reward::tests::searched;
    use crate::sample::{OriginRun, TurnAction};

    #[derive(Debug, Parser)]
    struct KeepFlags {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn searches_are_a_number_or_a_range() {
        assert_eq!(range("2").unwrap(), 2..=2);
        assert_eq!(range("1-3").unwrap(), 1..=3);
        for wrong in ["", "3-1", "x", "1-", "-2"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let temp = tempfile::tempdir().unwrap();
        let out = temp.path().join("kept.jsonl");
        std::fs::write(&out, "mine").unwrap();
        let flags = ["keep", "samples.jsonl", "--out", out.to_str().unwrap()];
        let error = KeepFlags::try_parse_from(flags).unwrap().args.run().unwrap_err().to_string();
        assert!(error.contains("already") && std::fs::read_to_string(&out).unwrap() == "mine", "{error}");
    }

    #[test]
    fn modes_that_were_written_for_the_policy_become_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("samples.jsonl");
        let out = temp.path().join("kept.jsonl");
        let sample = |mode, right: bool, at: u32| Sample {
            kind: Some("occupation".to_owned()),
            question_id: at.to_string(),
            golds: vec!["poet".to_owned()],
            answer: Some(if right { "poet" } else { "actor" }.to_owned()),
            tokens: vec![1, 2, at, 4],
            origins: vec![
                OriginRun(Origin::Prompt, 1),
                OriginRun(Origin::Policy, 1),
                OriginRun(Origin::Environment, 1),
                OriginRun(Origin::Policy, 1),
            ],
            prompt_tokens: 1,
            forced: vec![(1, 1)],
            actions: vec![TurnAction {
                turn: 2,
                action: Action::Answer { text: "poet".to_owned() },
                executed: true,
                late: false,
                summary: None,
            }],
            ..searched("", &[(mode, 0.1)])
        };
        let passage = (0..8).map(|at| sample(Mode::Passage, at == 0, at));
        let graph = (8..16).map(|at| sample(Mode::Graph, at < 11, at));
        let lines = passage.chain(graph).map(|sample| serde_json::to_string(&sample).unwrap() + "\n");
        std::fs::write(&file, lines.collect::<String>()).unwrap();
        let flags = ["keep", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--by-kind"];
        let searches = [&flags[..], &["--searches", "4-5"]].concat();
        let error = KeepFlags::try_parse_from(searches).unwrap().args.run().unwrap_err().to_string();
        assert!(error.contains("none of the 16 trajectories") && error.contains("(--by-kind)"), "{error}");
        KeepFlags::try_parse_from(flags).unwrap().args.run().unwrap();
        let kept = sample_lines::read(&out).unwrap();
        assert_eq!(kept.len(), 3);
        assert!(kept.iter().all(|sample| sample.first_mode() == Some(Mode::Graph) && sample.forced.is_empty()));
        assert_eq!(kept[0].loss_mask(), [false, true, false, true]);
    }

    #[test]
    fn the_error_for_no_kept_trajectory_names_the_flag() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("samples.jsonl");
        let out = temp.path().join("kept.jsonl");
        let sample = Sample { dataset: "2wiki".to_owned(), ..searched("", &[]) };
        std::fs::write(&file, serde_json::to_string(&sample).unwrap() + "\n").unwrap();
        let refused = |more: [&str; 2]| {
            let flags = ["keep", file.to_str().unwrap(), "--out", out.to_str().unwrap(), more[0], more[1]];
            KeepFlags::try_parse_from(flags).unwrap().args.run().unwrap_err().to_string()
        };
        let error = refused(["--dataset", "wiki"]);
        assert!(error.contains("--dataset wiki") && error.contains("of 2wiki"), "{error}");
        let error = refused(["--searches", "2-9"]);
        assert!(error.contains("2 to 9 searches (--searches)"), "{error}");
    }
}
