//! Values that users set in the environment: tokens and keys of services elsewhere.

use anyhow::Context;

use crate::remote::EndpointKey;

/// Value of the environment variable `name`. `None` if it is unset, empty or not valid Unicode.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// API key in the environment variable `name`. `None` if it is unset or blank.
///
/// # Errors
/// If the value is not valid Unicode or cannot be sent as a key.
pub fn key_in(name: &str) -> anyhow::Result<Option<EndpointKey>> {
    match std::env::var(name) {
        // Compose files set absent variables to an empty string.
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => EndpointKey::new(&text).map(Some).with_context(|| format!("environment variable {name}")),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("environment variable {name}")),
    }
}
