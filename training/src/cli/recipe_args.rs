//! Recipe arguments that every training command shares.

use std::path::PathBuf;

use crate::recipe::Recipe;

/// Recipe file and overrides of its fields.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RecipeFileArgs {
    /// Path to the recipe, a TOML file with all settings of the training.
    #[arg(long, value_name = "FILE")]
    pub(super) recipe: PathBuf,

    /// Override a field of the recipe, for example `sft.epochs=3`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,
}

/// Recipe of a command that trains.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RecipeArgs {
    #[command(flatten)]
    pub(super) file: RecipeFileArgs,

    /// Print the planned work with estimates of time and memory, and exit.
    #[arg(long)]
    pub(super) dry_run: bool,
}

impl RecipeFileArgs {
    /// Reads the recipe and applies the overrides.
    pub(super) fn open(&self) -> anyhow::Result<Recipe> {
        Ok(Recipe::open(&self.recipe, &self.set)?)
    }
}

impl RecipeArgs {
    /// Reads the recipe and applies the overrides.
    pub(super) fn open(&self) -> anyhow::Result<Recipe> {
        self.file.open()
    }
}
