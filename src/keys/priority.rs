//! Priorities of keys and requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use waymark_engine::Priority;

/// Priority of generation. Among callers that compete, `high` gets four times the share of `normal`, and `low` a quarter.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[schema(as = Priority)]
#[serde(rename_all = "lowercase")]
pub enum RequestPriority {
    /// A quarter of the normal share.
    Low,
    /// The normal share.
    #[default]
    Normal,
    /// Four times the normal share.
    High,
}

impl RequestPriority {
    /// Returns the name, as key files and requests write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

impl From<RequestPriority> for Priority {
    fn from(priority: RequestPriority) -> Self {
        match priority {
            RequestPriority::Low => Self::Low,
            RequestPriority::Normal => Self::Normal,
            RequestPriority::High => Self::High,
        }
    }
}
