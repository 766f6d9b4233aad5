//! Tokens of deltas with their log-probabilities.

use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::ToSchema;

/// A token of a delta with its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct TokenLogprob {
    /// Token ID.
    pub id: u32,
    /// Text of the token; invalid UTF-8 appears as U+FFFD.
    pub text: String,
    /// Bytes of the token.
    pub bytes: Vec<u8>,
    /// Log-probability under the full distribution. `null` for a forced token.
    #[cfg_attr(feature = "openapi", schema(required))]
    pub logprob: Option<f32>,
    /// Most probable tokens at this position, best first.
    pub top: Vec<TopLogprob>,
}

/// An alternative token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub struct TopLogprob {
    /// Token ID.
    pub id: u32,
    /// Text of the token; invalid UTF-8 appears as U+FFFD.
    pub text: String,
    /// Bytes of the token.
    pub bytes: Vec<u8>,
    /// Log-probability under the full distribution.
    pub logprob: f32,
}
