//! No retrieval: the model thinks and answers from memory.

use waymark_agent::{AgentError, SessionSource};

use super::baseline_run::BaselineRun;
use super::reader;
use crate::evaluate::EpisodeRow;

/// Answers without evidence.
pub(super) async fn answer<S: SessionSource>(run: BaselineRun<'_, S>) -> Result<EpisodeRow, AgentError> {
    reader::read(run, None).await
}
