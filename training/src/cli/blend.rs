//! `train blend`: linear interpolation between two policies.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::ensure;

use super::compute_args;
use super::host_args::HostArgs;
use super::initial_policy;
use super::recipe_args::RecipeArgs;
use crate::policy_writer::{self, TrainingRecord};
use crate::run::MetricsRow;

/// Interpolates linearly between the weights of two policies of the same recipe.
///
/// --share 0 yields the policy --from, and 1 yields --to. A blend can undo a training run that went too far, for
/// example one that learned to search less at the cost of wrong answers, without training again (WiSE-FT, arXiv
/// 2109.01903). For adapters both low-rank factors are interpolated, which only approximates the interpolation of their
/// product: measure the result with `train eval`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train blend --recipe training/recipes/routerag-smollm2.toml \\
      --from runs/stage1 --to runs/stage2 --share 0.6 --out runs/between
  train eval --policy runs/stage1/policy --policy runs/between \\
      --questions eval.jsonl --index corpus.index")]
pub(crate) struct Args {
    #[command(flatten)]
    recipe_args: RecipeArgs,

    /// Policy or run at share 0.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,

    /// Policy or run at share 1.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// Position between the two policies, from 0 to 1.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    share: f64,

    /// Directory to write the policy to. It must not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    #[command(flatten)]
    host_args: HostArgs,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        ensure!(!self.out.exists(), "{} already exists: give another directory", self.out.display());
        let recipe = self.recipe_args.open()?;
        // The only pass through the model is that of the fingerprint, so the CPU is enough.
        let (mut learner, base) = compute_args::load_on_cpu(&recipe, &self.host_args)?;
        let first = initial_policy::load("--from", &self.from, &recipe, &base, &mut learner)?;
        let from = learner.values().to_vec();
        let second = initial_policy::load("--to", &self.to, &recipe, &base, &mut learner)?;
        let distance = mean_distance(&from, learner.values());
        if self.recipe_args.dry_run {
            return Ok(writeln!(
                io::stdout(),
                "apart      {distance:.3e} mean absolute difference of {} values",
                from.len()
            )?);
        }
        let values = between(&from, learner.values(), self.share as f32);
        learner.set_values(&values)?;
        let data = [(&self.from, first.hash), (&self.to, second.hash)];
        let data = data.map(|(dir, hash)| (dir.display().to_string(), hash));
        let row = MetricsRow::new(0, "blend", 0.0).with("share", self.share).with("apart", distance);
        let record = TrainingRecord {
            kind: "blend",
            data: data.to_vec(),
            before: second.record,
            rows: vec![row],
            ..TrainingRecord::default()
        };
        policy_writer::write(&self.out, &learner, &recipe, &record, base.policy_base())?;
        policy_writer::add_fingerprint_if_possible(&self.out, &mut learner, base.policy_base());
        Ok(writeln!(io::stdout(), "{}", self.out.display())?)
    }
}

/// Interpolates element by element: `from · (1 − share) + to · share`.
fn between(from: &[f32], to: &[f32], share: f32) -> Vec<f32> {
    from.iter().zip(to).map(|(from, to)| from * (1.0 - share) + to * share).collect()
}

/// Mean absolute difference of two vectors.
fn mean_distance(from: &[f32], to: &[f32]) -> f64 {
    let sum: f64 = from.iter().zip(to).map(|(from, to)| f64::from((from - to).abs())).sum();
    sum / from.len().max(1) as f64
}

/// Parses a share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| format!("not a number: {text:?}"))?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(format!("{share} is not between 0 and 1")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_ends_of_a_blend_are_the_two_policies() {
        let from = [0.1f32, -3.0, 7.5];
        let to = [0.3f32, 1e-8, -7.5];
        assert_eq!(between(&from, &to, 0.0), from);
        assert_eq!(between(&from, &to, 1.0), to);
        assert_eq!(between(&[1.0, -2.0], &[3.0, 2.0], 0.25), [1.5, -1.0]);
        assert!((mean_distance(&[1.0, -2.0], &[3.0, 2.0]) - 3.0).abs() < 1e-9);
        assert_eq!(share("0.6"), Ok(0.6));
        for wrong in ["-0.1", "1.1", "NaN", "half"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
