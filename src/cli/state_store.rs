//! Opening of the state that `--state` names.

use std::sync::Arc;

use anyhow::Context;
use waymark_runtime::cache;

use crate::config::{ServeConfig, StateLocation};
use crate::store::{SqlStore, Store};

/// Name of the default state directory in the cache folder.
const DIRECTORY: &str = "state";

/// Returns the location of the state: the one that `config` names, or the default.
///
/// # Errors
/// If there is no folder for the default.
pub(super) fn location(config: &ServeConfig) -> anyhow::Result<StateLocation> {
    match &config.state.location {
        Some(location) => Ok(location.clone()),
        // A mock has nothing to remember.
        None if config.model.weights.is_none() && config.fleet.is_none() => Ok(StateLocation::None),
        None => Ok(StateLocation::Directory(cache::folder(config.model.cache.clone())?.join(DIRECTORY))),
    }
}

/// Opens the state. `None` keeps records in memory only.
///
/// # Errors
/// If the location that `config` names cannot be used. Without `--state` the server then starts without a state.
pub(super) async fn open(config: &ServeConfig) -> anyhow::Result<Option<Arc<dyn Store>>> {
    let store = match open_location(config).await {
        Err(error) if config.state.location.is_none() => {
            tracing::warn!(error = format!("{error:#}"), "nothing is kept beyond this process: set --state");
            None
        }
        opened => opened?,
    };
    let Some(store) = store else { return Ok(None) };
    tracing::info!(kind = store.name(), "records are kept in the state");
    Ok(Some(Arc::new(store)))
}

async fn open_location(config: &ServeConfig) -> anyhow::Result<Option<SqlStore>> {
    let limits = config.state.limits;
    match location(config)? {
        StateLocation::None => Ok(None),
        StateLocation::Directory(dir) => Ok(Some(SqlStore::open_directory(&dir, limits).await?)),
        StateLocation::Postgres(url) => {
            let store = SqlStore::open_postgres(&url, limits).await;
            Ok(Some(store.context("cannot use the database of --state")?))
        }
    }
}
