//! Single-shot RAG: one search for the question, then the reader. With the graph this is HippoRAG 2; the hybrid search
//! is RouteRAG's.

use waymark_agent::{AgentError, SessionSource};
use waymark_index::{GraphVariant, Mode, Ranking, SearchOptions};

use super::baseline_run::BaselineRun;
use super::reader;
use crate::evaluate::EpisodeRow;

/// Number of passages that HippoRAG's reader sees (`qa_top_k`).
const PASSAGES: usize = 5;

/// Searches once in `mode` and answers.
pub(super) async fn answer<S: SessionSource>(
    mut run: BaselineRun<'_, S>,
    mode: Mode,
) -> Result<EpisodeRow, AgentError> {
    // The papers' vanilla RAG ranks by a dense retriever.
    let ranking = (mode == Mode::Passage).then_some(Ranking::Dense);
    let graph = (mode == Mode::Graph).then(|| GraphVariant::HippoRag.into());
    let options = SearchOptions { mode: Some(mode), k: Some(PASSAGES), ranking, graph, ..SearchOptions::default() };
    let hits = run.search(run.question(), &options).await?;
    let passages = reader::shown(&hits);
    run.show(&passages)?;
    reader::read(run, Some(&passages)).await
}
