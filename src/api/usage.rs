//! What an answer cost, as the OpenAI interface counts it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::agent::Usage;

/// Tokens and searches of one or several episodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct ChatUsage {
    /// Tokens of the prompt, counted once however many answers were asked for.
    pub prompt_tokens: usize,
    /// Tokens the policy produced: sampled ones, and those a protocol put in its mouth.
    pub completion_tokens: usize,
    /// The sum of the two.
    pub total_tokens: usize,
    /// Parts of `prompt_tokens`.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Parts of `completion_tokens`.
    pub completion_tokens_details: CompletionTokensDetails,
    /// Tokens of evidence and other observations, which neither count holds. Not in OpenAI's interface.
    pub environment_tokens: usize,
    /// Searches that were executed. Not in OpenAI's interface.
    pub searches: usize,
    /// How long they took, in milliseconds. Not in OpenAI's interface.
    pub search_ms: f64,
}

/// Parts of the prompt's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens whose KV the prefix cache held.
    pub cached_tokens: usize,
}

/// Parts of the completion's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens that went into reasoning and queries.
    pub reasoning_tokens: usize,
}

impl ChatUsage {
    /// Adds an episode of the same prompt.
    pub fn add(&mut self, usage: &Usage) {
        self.prompt_tokens = usage.prompt_tokens;
        self.completion_tokens += usage.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
        let cached = &mut self.prompt_tokens_details.cached_tokens;
        *cached = (*cached).max(usage.cached_tokens.min(usage.prompt_tokens));
        self.completion_tokens_details.reasoning_tokens += usage.reasoning_tokens;
        self.environment_tokens += usage.environment_tokens;
        self.searches += usage.searches;
        self.search_ms += usage.search_ms;
    }

    /// Adds what another prompt cost.
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
