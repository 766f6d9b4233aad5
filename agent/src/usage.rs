//! Token and search counts.

use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

/// Token and search counts of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = EpisodeUsage))]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled by the policy or forced in its name.
    pub completion_tokens: usize,
    /// Completion tokens of reasoning and queries, without tags. Those of an interrupted turn are not counted.
    pub reasoning_tokens: usize,
    /// Tokens injected by the environment.
    pub environment_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Executed searches, without those answered from the episode's memory. 0 in records written before searches were
    /// counted.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub searches: usize,
    /// Total duration of the searches, in milliseconds.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub search_ms: f64,
}
