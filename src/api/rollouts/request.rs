//! Request type of `POST /v1/rollouts`.

use serde::Deserialize;
use utoipa::ToSchema;
use waymark_training::reward::RewardChoice;

use crate::api::body::WireRequest;
use crate::api::rag::RagOptions;

/// Questions to play with a policy.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// Name of the policy. Defaults to the first loaded policy.
    pub model: Option<String>,
    /// Questions to answer.
    #[schema(min_items = 1, max_items = 1024)]
    pub questions: Vec<RolloutQuestion>,
    /// Number of trajectories per question. Default 1.
    #[schema(minimum = 1, maximum = 64)]
    pub n: Option<u32>,
    /// Sampling temperature. Default 1.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the most probable tokens whose probabilities add up to this value. Default 1.
    #[schema(minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Number of most probable tokens to keep; 0 and -1 keep all, the default.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Maximum number of completion tokens of a trajectory, forced ones included, within the policy's own limit.
    #[schema(minimum = 1)]
    pub max_tokens: Option<u32>,
    /// Seed of all trajectories. The same request with the same seed gives the same samples. Random by default.
    pub seed: Option<i64>,
    /// Reward function, as in `[grpo.stages.reward]` of a recipe: a name such as `"exact_match"`, or an object such as
    /// `{"format_bonus": {…}}`. Without it, trajectories have scores but no reward.
    #[schema(value_type = Option<Object>)]
    pub reward: Option<RewardChoice>,
    /// Number of trajectories that are played at the same time. Default 32.
    #[schema(minimum = 1, maximum = 64)]
    pub concurrency: Option<u32>,
    /// If `true`, each trajectory is sent when it ends.
    pub stream: Option<bool>,
    /// Search options and limits of the episodes.
    pub rag: Option<RagOptions>,
}

impl WireRequest for RolloutRequest {
    const UNIMPLEMENTED: &'static [(&'static str, &'static [&'static str])] = &[
        ("rag.trace", &["false"]),
        ("rag.citations", &["false"]),
        ("rag.store", &["false"]),
        ("rag.guided", &["false"]),
    ];
}

/// Question to play, with what its scores and rewards need.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutQuestion {
    /// ID of the question, returned with its trajectories.
    pub id: Option<String>,
    /// Text of the question.
    pub question: String,
    /// Token IDs of the prompt, instead of the protocol's own prompt for the question.
    pub prompt_ids: Option<Vec<u32>>,
    /// Accepted answers. Without them, all scores of the answer are 0.
    #[serde(default)]
    pub answers: Vec<String>,
    /// IDs of all supporting passages. Empty if they are not known.
    #[serde(default)]
    pub supporting: Vec<String>,
    /// Texts of the supporting passages, title first, for rewards that compare evidence with them. Empty if they are not
    /// known.
    #[serde(default)]
    pub support: Vec<String>,
    /// IDs of passages that searches do not find.
    #[serde(default)]
    pub without: Vec<String>,
}
