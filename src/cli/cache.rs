//! Where downloads and built indexes are kept between runs.

use std::env;
use std::path::PathBuf;

use anyhow::Context;

/// The folder that was asked for, or the user's: `$XDG_CACHE_HOME/waymark`, else `~/.cache/waymark`.
pub fn folder(asked: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(folder) = asked {
        return Ok(folder);
    }
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|folder| folder.join("waymark"))
        .context("no home directory to keep downloads in: set --cache")
}
