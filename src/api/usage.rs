//! Token usage of completions, as the OpenAI interface counts it.

use serde::Serialize;
use utoipa::ToSchema;
use waymark_agent::Usage;

/// Tokens and searches of one or several episodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct ChatUsage {
    /// Number of tokens in the prompt, counted once for all answers to it.
    pub prompt_tokens: usize,
    /// Number of tokens generated: sampled ones, and those that the protocol forced.
    pub completion_tokens: usize,
    /// Sum of `prompt_tokens` and `completion_tokens`.
    pub total_tokens: usize,
    /// Details of `prompt_tokens`.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Details of `completion_tokens`.
    pub completion_tokens_details: CompletionTokensDetails,
    /// Number of tokens of evidence and other observations, not included in either count. Not in OpenAI's interface.
    pub environment_tokens: usize,
    /// Number of executed searches. Not in OpenAI's interface.
    pub searches: usize,
    /// Total duration of the searches, in milliseconds. Not in OpenAI's interface.
    pub search_ms: f64,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Number of tokens found in the prefix cache.
    pub cached_tokens: usize,
}

/// Details of the generated tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Number of tokens of reasoning and queries, without tags.
    pub reasoning_tokens: usize,
}

impl ChatUsage {
    /// Adds an episode of the same prompt.
    pub fn add(&mut self, usage: &Usage) {
        // Every episode of a prompt reports the same prompt, so its tokens are not added up.
        self.prompt_tokens = usage.prompt_tokens;
        self.completion_tokens += usage.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        let cached = &mut self.prompt_tokens_details.cached_tokens;
        // Every episode of a prompt may find it in the cache, so the best hit counts, not the sum.
        *cached = (*cached).max(usage.cached_tokens.min(usage.prompt_tokens));
        self.completion_tokens_details.reasoning_tokens += usage.reasoning_tokens;
        self.environment_tokens += usage.environment_tokens;
        self.searches += usage.searches;
        self.search_ms += usage.search_ms;
    }

    /// Adds the usage of another prompt.
    pub fn join(&mut self, other: &ChatUsage) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.total_tokens += other.total_tokens;
        self.prompt_tokens_details.cached_tokens += other.prompt_tokens_details.cached_tokens;
        self.completion_tokens_details.reasoning_tokens += other.completion_tokens_details.reasoning_tokens;
        self.environment_tokens += other.environment_tokens;
        self.searches += other.searches;
        self.search_ms += other.search_ms;
    }
}
