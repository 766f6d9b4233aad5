//! The cache folder for downloads and built indexes.

use std::env;
use std::path::PathBuf;

use anyhow::Context;

/// Returns `asked`, or the user's cache folder: `$XDG_CACHE_HOME/waymark`, else `~/.cache/waymark`.
pub fn folder(asked: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(folder) = asked {
        return Ok(folder);
    }
    // The XDG base directory specification says to ignore relative paths.
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|folder| folder.join("waymark"))
        .context("no home directory for downloads: set --cache")
}
