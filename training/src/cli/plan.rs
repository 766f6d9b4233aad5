//! `train plan`: the rewards of a recipe for a right answer and for bad behaviors.

use super::recipe_args::RecipeFileArgs;
use crate::traps::TrapTable;

/// Prints what the rewards of a recipe pay for a right answer in two hops, and for cheap bad behaviors.
///
/// Each behavior is played through the loop in the recipe's protocol: `repeat` searches for the same thing until the last
/// turn, `refuse` and `answer` end at once, `exhaust` searches for useless things until the budget ends. A recipe in which
/// one of them earns more than the right answer is refused by `train grpo`, `train dpo` and `train experiment`, unless its
/// stage names it in `allow_traps`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  train plan --recipe training/recipes/graphrag_r1-smollm2.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    recipe_file: RecipeFileArgs,
}

impl Args {
    pub(crate) fn run(self, log: Option<&str>) -> anyhow::Result<()> {
        super::block_on(log, "warn", self.print())
    }

    async fn print(self) -> anyhow::Result<()> {
        let table = TrapTable::of(&self.recipe_file.open()?).await?;
        anstream::print!("{table}");
        Ok(table.check()?)
    }
}
