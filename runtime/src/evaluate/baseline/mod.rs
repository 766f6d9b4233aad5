//! Baselines that papers compare policies with: fixed procedures around the base model, without training.
//!
//! Search-R1's loop is not in this module, because it is a protocol: the policy `search-r1`.

mod baseline_run;
mod ircot;
mod no_retrieval;
mod reader;
mod search_o1;
mod single_shot;

use waymark_agent::{AgentError, Runtime, SessionSource};
use waymark_index::{Mode, SearchOptions};

use baseline_run::BaselineRun;

use super::question::Question;
use super::{EpisodeRow, EvaluationPlan};

/// A fixed procedure that answers questions with the base model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// The model alone.
    NoRetrieval,
    /// One search for the question in this mode, then an answer: vanilla RAG, HippoRAG 2 with the graph, or RouteRAG's
    /// hybrid search.
    SingleShot(Mode),
    /// IRCoT (Trivedi et al. 2023): searches for each sentence of a chain of thought.
    IrCot,
    /// Search-o1 (Li et al. 2025): searches within a thought; another call condenses what was found.
    SearchO1,
}

/// Names of the baselines.
const NAMES: [(&str, Baseline); 6] = [
    ("no-retrieval", Baseline::NoRetrieval),
    ("passage-rag", Baseline::SingleShot(Mode::Passage)),
    ("hippo-rag", Baseline::SingleShot(Mode::Graph)),
    ("hybrid-rag", Baseline::SingleShot(Mode::Hybrid)),
    ("ircot", Baseline::IrCot),
    ("search-o1", Baseline::SearchO1),
];

impl Baseline {
    /// Returns the baseline with this name.
    pub fn named(name: &str) -> Option<Baseline> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, baseline)| *baseline)
    }

    /// Iterates over the names of all baselines.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Returns `true` if the mode of the baseline's searches can be chosen.
    pub fn takes_mode(self) -> bool {
        matches!(self, Baseline::IrCot | Baseline::SearchO1)
    }

    /// Returns the search modes whose results the baseline can show completely: those that find passages alone.
    pub fn shows(self) -> &'static [Mode] {
        &[Mode::Passage, Mode::Graph, Mode::Hybrid]
    }

    fn name(self) -> &'static str {
        NAMES.iter().find(|(_, baseline)| *baseline == self).map_or("baseline", |(name, _)| *name)
    }

    /// Answers `question` and scores the answer.
    ///
    /// # Errors
    /// Same as those of an episode: for example if the context is too small for the evidence, or if `search` forces a
    /// mode that the baseline does not [show](Self::shows).
    pub(super) async fn answer<S: SessionSource>(
        self,
        runtime: &Runtime<S>,
        question: &Question,
        search: &SearchOptions,
        plan: &EvaluationPlan,
        seed: u64,
    ) -> Result<EpisodeRow, AgentError> {
        let shown = self.shows();
        if let Some(mode) = search.mode.filter(|mode| !shown.contains(mode)) {
            return Err(AgentError::TriplesNotShown { protocol: self.name(), mode, shown });
        }
        let run = BaselineRun::new(runtime, question, search, plan, seed)?;
        match self {
            Baseline::NoRetrieval => no_retrieval::answer(run).await,
            Baseline::SingleShot(mode) => single_shot::answer(run, mode).await,
            Baseline::IrCot => ircot::answer(run).await,
            Baseline::SearchO1 => search_o1::answer(run).await,
        }
    }
}
