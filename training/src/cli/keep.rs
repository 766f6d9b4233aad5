//! `train keep`.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use crate::keep::Sieve;
use crate::run::durable;
use crate::sample::Sample;
use crate::store;

/// Keeps a policy's own trajectories that were right by themselves, to imitate them.
///
/// Kept are those whose own answer is a gold one, whose turns all did what they were to do, and that made no search twice.
/// What an earlier policy finds out by chance, the next one does more often: `train sft` learns them as it learns any other.
/// With --wrong the answer need not be a gold one: a policy that goes round in circles learns to come to an end.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train keep runs/stage1/samples.jsonl --dataset 2wiki_train --searches 2-3 --out kept.jsonl
  train sft --recipe training/recipes/routerag-smollm2.toml --init runs/sft --data kept.jsonl --out runs/kept")]
pub(crate) struct Args {
    /// Files of samples, as `train rollout` and `train grpo` write them.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Where those that are kept are written, one per line.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Only those of this data set; may be given several times.
    #[arg(long, value_name = "NAME")]
    dataset: Vec<String>,

    /// Only those that searched so often: `2`, or from `1-3`.
    #[arg(long, value_name = "N", default_value = "1-8", value_parser = range)]
    searches: RangeInclusive<usize>,

    /// Also those that are wrong, as long as the policy gave and closed the answer itself. Of a question's trajectories
    /// the right ones go first.
    #[arg(long)]
    wrong: bool,

    /// Only of questions of which another trajectory would not have been kept, however often it searched.
    #[arg(long)]
    contested: bool,

    /// Trajectories of one question at most.
    #[arg(long, value_name = "N", default_value_t = 2)]
    per_question: usize,

    /// Which of a question's trajectories are kept where there are more.
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        ensure!(!self.out.exists(), "{}: it is there already: give another file", self.out.display());
        let mut samples = Vec::new();
        for file in &self.files {
            samples.extend(store::read(file)?);
        }
        self.check_datasets(&samples)?;
        samples.retain(|sample| self.dataset.is_empty() || self.dataset.contains(&sample.dataset));
        let (least, most) = (*self.searches.start(), *self.searches.end());
        let sieve = Sieve {
            searches: self.searches,
            wrong: self.wrong,
            contested: self.contested,
            per_question: self.per_question,
            seed: self.seed,
        };
        let kept = sieve.keep(&samples);
        let (total, end) = (samples.len(), if self.wrong { "came to an end" } else { "was right" });
        let among = if self.contested { ", of a question of which another was not" } else { "" };
        ensure!(
            !kept.is_empty(),
            "of {total} trajectories none {end} by itself with {least} to {most} searches (--searches){among}"
        );
        durable::write_with(&self.out, |file| {
            kept.iter().try_for_each(|&at| {
                serde_json::to_writer(&mut *file, &samples[at])?;
                file.write_all(b"\n")
            })
        })?;
        anstream::println!("kept {} of {} trajectories: {}", kept.len(), samples.len(), self.out.display());
        Ok(())
    }

    /// Refuses the name of a data set of which there is nothing.
    fn check_datasets(&self, samples: &[Sample]) -> anyhow::Result<()> {
        let there: BTreeSet<&str> = samples.iter().map(|sample| sample.dataset.as_str()).collect();
        let absent = self.dataset.iter().find(|name| !there.contains(name.as_str()));
        absent.map_or(Ok(()), |name| {
            let there = there.iter().copied().collect::<Vec<_>>().join(", ");
            bail!("--dataset {name}: no trajectory is of it; they are of {there}")
        })
    }
}

/// `2` or `1-3`.
fn range(text: &str) -> anyhow::Result<RangeInclusive<usize>> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<usize>().with_context(|| format!("{text:?} is no number"));
    let (least, most) = (number(least)?, number(most)?);
    ensure!(least <= most, "{least} is more than {most}");
    Ok(least..=most)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;
    use crate::reward::tests::searched;

    #[derive(Debug, Parser)]
    struct Flags {
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
    fn what_is_there_is_not_overwritten() {
        let temp = tempfile::tempdir().unwrap();
        let out = temp.path().join("kept.jsonl");
        std::fs::write(&out, "mine").unwrap();
        let flags = ["keep", "samples.jsonl", "--out", out.to_str().unwrap()];
        let error = Flags::try_parse_from(flags).unwrap().args.run().unwrap_err().to_string();
        assert!(error.contains("already") && std::fs::read_to_string(&out).unwrap() == "mine", "{error}");
    }

    #[test]
    fn where_nothing_is_kept_the_flag_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let (file, out) = (temp.path().join("samples.jsonl"), temp.path().join("kept.jsonl"));
        let sample = Sample { dataset: "2wiki".to_owned(), ..searched("", &[]) };
        std::fs::write(&file, serde_json::to_string(&sample).unwrap() + "\n").unwrap();
        let refused = |more: [&str; 2]| {
            let flags = ["keep", file.to_str().unwrap(), "--out", out.to_str().unwrap(), more[0], more[1]];
            Flags::try_parse_from(flags).unwrap().args.run().unwrap_err().to_string()
        };
        let error = refused(["--dataset", "wiki"]);
        assert!(error.contains("--dataset wiki") && error.contains("of 2wiki"), "{error}");
        let error = refused(["--searches", "2-9"]);
        assert!(error.contains("2 to 9 searches (--searches)"), "{error}");
    }
}
