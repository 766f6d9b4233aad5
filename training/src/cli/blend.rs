//! `train blend`: a policy between two others.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::ensure;

use super::asked::{self, Asked};
use super::host::Host;
use super::machine;
use crate::product::{self, Record};
use crate::run::Row;

/// Makes a policy between two others of the same recipe, number by number.
///
/// Of what lies between --from and --to the share that is asked for is gone: 0 is the one, 1 the other. Where a run went too far,
/// such as one that learnt to search less and to be wrong for it, the way back need not be learnt (WiSE-FT, arXiv 2109.01903).
/// Of an adapter both factors are taken so, which is nearly, not wholly, what lies between their products: measure what comes
/// out (`train eval`).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train blend --recipe training/recipes/routerag-smollm2.toml --from runs/stage1 --to runs/stage2 --share 0.6 \\
              --out runs/between
  train eval --policy runs/stage1 --policy runs/between --questions eval.jsonl --index corpus.index")]
pub(crate) struct Args {
    #[command(flatten)]
    asked: Asked,

    /// The policy or run that it begins at.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,

    /// The policy or run that it leads to.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// How far it goes, from 0 to 1.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    share: f64,

    /// Where the policy is written.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    #[command(flatten)]
    host: Host,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        ensure!(!self.out.exists(), "{}: it is there already: give another directory", self.out.display());
        let recipe = self.asked.open()?;
        let (mut learner, base) = machine::on_processor(&recipe, &self.host)?;
        let (_, first) = asked::take("--from", &self.from, &recipe, &base, &mut learner)?;
        let from = learner.values().to_vec();
        let (before, second) = asked::take("--to", &self.to, &recipe, &base, &mut learner)?;
        let far = apart(&from, learner.values());
        if self.asked.dry_run {
            return Ok(writeln!(io::stdout(), "apart      {far:.3e} in the mean, of {} numbers", from.len())?);
        }
        let values = between(&from, learner.values(), self.share as f32);
        learner.set_values(&values)?;
        let data = [(&self.from, first), (&self.to, second)].map(|(dir, hash)| (dir.display().to_string(), hash));
        let row = Row::new(0, "blend", 0.0).with("share", self.share).with("apart", far);
        let record = Record { kind: "blend", data: data.to_vec(), before, rows: vec![row], ..Record::default() };
        product::write(&self.out, &learner, &recipe, &record, base.product())?;
        Ok(writeln!(io::stdout(), "{}", self.out.display())?)
    }
}

/// What lies so far on the way from the one to the other.
fn between(from: &[f32], to: &[f32], share: f32) -> Vec<f32> {
    from.iter().zip(to).map(|(from, to)| from * (1.0 - share) + to * share).collect()
}

/// How far numbers are from each other in the mean.
fn apart(from: &[f32], to: &[f32]) -> f64 {
    let sum: f64 = from.iter().zip(to).map(|(from, to)| f64::from((from - to).abs())).sum();
    sum / from.len().max(1) as f64
}

/// A share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("it is from 0 to 1".to_owned()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_ends_are_what_they_were() {
        let (from, to) = ([0.1f32, -3.0, 7.5], [0.3f32, 1e-8, -7.5]);
        assert_eq!(between(&from, &to, 0.0), from);
        assert_eq!(between(&from, &to, 1.0), to);
        assert_eq!(between(&[1.0, -2.0], &[3.0, 2.0], 0.25), [1.5, -1.0]);
        assert!((apart(&[1.0, -2.0], &[3.0, 2.0]) - 3.0).abs() < 1e-9);
        assert_eq!(share("0.6"), Ok(0.6));
        for wrong in ["-0.1", "1.1", "NaN", "half"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
