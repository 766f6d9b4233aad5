//! The filter of facts that the flags name.

use std::sync::Arc;

use anyhow::Context;
use waymark_index::{FactFilter, ModelFilter};

use super::triples::key_in;
use crate::config::FactFilterConfig;
use crate::remote::ChatEndpoint;

/// A filter that asks the model which `config` names.
pub(crate) fn fact_filter(config: &FactFilterConfig) -> anyhow::Result<Arc<dyn FactFilter>> {
    let key = key_in(&config.key_env)?;
    let complete = ChatEndpoint::new(&config.url, &config.model, key, config.timeout).context("--fact-filter-url")?;
    let filter = ModelFilter::new(Arc::new(complete));
    Ok(Arc::new(if config.fallback { filter.falling_back() } else { filter }))
}
