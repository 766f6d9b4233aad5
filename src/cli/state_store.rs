//! Opening of the state that `--state` names.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use waymark_runtime::cache;

use crate::config::{ServeConfig, StatePlace};
use crate::store::{SqlStore, Store};

/// Name of the default state directory in the cache folder.
const DIRECTORY: &str = "state";

/// Opens the state. `None` keeps records in memory only.
///
/// # Errors
/// If the place that `config` names cannot be used. Without `--state` the server then starts without a state.
pub(super) async fn open(config: &ServeConfig) -> anyhow::Result<Option<Arc<dyn Store>>> {
    let limits = config.state.limits;
    let store = match &config.state.place {
        Some(StatePlace::None) => return Ok(None),
        Some(StatePlace::Directory(dir)) => SqlStore::open_directory(dir, limits).await?,
        Some(StatePlace::Postgres(url)) => {
            SqlStore::open_postgres(url, limits).await.context("cannot use the database of --state")?
        }
        // A mock has nothing to remember.
        None if config.model.weights.is_none() && config.fleet.is_none() => return Ok(None),
        None => match default_directory(config).await {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "nothing is kept beyond this process: set --state");
                return Ok(None);
            }
        },
    };
    tracing::info!(kind = store.name(), "records are kept in the state");
    Ok(Some(Arc::new(store)))
}

async fn default_directory(config: &ServeConfig) -> anyhow::Result<SqlStore> {
    let dir = cache::folder(config.model.cache.clone())?.join(DIRECTORY);
    Ok(SqlStore::open_directory(Path::new(&dir), config.state.limits).await?)
}
