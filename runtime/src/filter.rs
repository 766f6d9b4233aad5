//! Fact filter configured by the flags.

use std::sync::Arc;

use anyhow::Context;
use waymark_index::{FactFilter, ModelFilter};

use crate::config::FactFilterConfig;
use crate::environment::key_in;
use crate::remote::ChatEndpoint;
use crate::trusted_roots::TrustedRoots;

/// Builds the fact filter that asks the model named by `config`.
///
/// # Errors
/// If the key, URL or certificates of the model's endpoint are invalid.
pub fn fact_filter(config: &FactFilterConfig) -> anyhow::Result<Arc<dyn FactFilter>> {
    let key = key_in(&config.key_env)?;
    let roots = TrustedRoots::of_flag("--fact-filter-ca", config.ca.as_deref())?;
    // No request is sent yet: the endpoint may start after the server.
    let complete = ChatEndpoint::new(&config.url, &config.model, key, config.timeout, roots);
    let filter = ModelFilter::new(Arc::new(complete.context("--fact-filter-url")?));
    Ok(Arc::new(if config.fallback { filter.falling_back() } else { filter }))
}
