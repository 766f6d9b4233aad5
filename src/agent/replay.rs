//! A recorded episode once more, token by token as it was.

use std::time::Instant;

use waymark_models::sampler::SamplingParams;

use super::AgentError;
use super::episode::Episode;
use super::generator::{Generator, Source, Steps};
use super::search::{SearchError, SearchQuery};
use super::trajectory::Found;
use crate::engine::{Generate, Origin, Token};

/// What came of taking a recorded episode's tokens again.
#[derive(Debug, Clone, PartialEq)]
pub struct Forced {
    /// The prompt as it is made of the question now.
    pub prompt: Vec<u32>,
    /// The recorded tokens, with the log-probabilities that those sampled have now.
    pub tokens: Vec<Token>,
    /// What the searches find now that were made then; those answered from the episode's memory are left out.
    pub evidence: Vec<Found>,
}

impl<S: Source> Episode<S> {
    /// Takes the `tokens` of a recorded episode of the same question instead of sampling any. What was given then is
    /// given again; what was sampled is computed step by step, as it was, and scored. The searches in `evidence` are
    /// made again in the index as it is now; what they find is told, and changes no token.
    ///
    /// # Errors
    /// [`AgentError::Option`] for a policy of the training variant, whose record is not what its sessions held;
    /// [`AgentError::Engine`] when the engine refuses or fails.
    pub async fn force(self, tokens: &[Token], evidence: &[Found]) -> Result<Forced, AgentError> {
        if self.policy.variant.cuts() {
            let reason =
                "cannot be `forced` for a policy of the training variant: its turns see a part of the sequence";
            return Err(AgentError::Option { field: "mode", reason });
        }
        let options = self.settings.session(&self.policy);
        let mut session = self.runtime.engine.open(options);
        for run in tokens.chunk_by(|a, b| (a.origin, a.forced) == (b.origin, b.forced)) {
            let ids: Vec<u32> = run.iter().map(|token| token.id).collect();
            match run[0] {
                Token { origin: Origin::Policy, forced: false, .. } => score(&mut session, ids).await?,
                Token { origin, forced, .. } => session.append(&ids, origin, forced),
            }
        }
        let tokens = session.tokens().to_vec();
        // Its blocks are not needed while the searches run.
        drop(session);
        let mut found = Vec::new();
        for then in evidence.iter().filter(|found| !found.cached) {
            found.push(self.search_again(then).await);
        }
        Ok(Forced { prompt: self.prompt, tokens, evidence: found })
    }

    async fn search_again(&self, then: &Found) -> Found {
        let began = Instant::now();
        let wanted = self.settings.query(&then.query, &then.entities, then.mode);
        let result = match &self.runtime.searcher {
            Some(searcher) => searcher.search(SearchQuery::from(wanted)).await,
            None => Err(SearchError::Failed("no index is loaded".to_owned())),
        };
        let result = result.map(|found| self.settings.left(found));
        let error = result.as_ref().err().map(SearchError::to_string);
        let (hits, triples, snapshot) =
            result.map_or_else(|_| Default::default(), |found| (found.hits, found.triples, Some(found.snapshot)));
        let (turn, query, mode, seconds) = (then.turn, then.query.clone(), then.mode, began.elapsed().as_secs_f64());
        let (entities, withdrawn) = (then.entities.clone(), then.withdrawn);
        let (cached, neutralised) = (false, 0);
        Found { turn, query, entities, mode, hits, triples, snapshot, cached, neutralised, seconds, error, withdrawn }
    }
}

/// Has the session take `ids` as if it had sampled them.
async fn score(session: &mut impl Generator, ids: Vec<u32>) -> Result<(), AgentError> {
    let sampling = SamplingParams::greedy();
    let spec = Generate { sampling, max_tokens: ids.len(), force: ids, ignore_eos: true, ..Generate::default() };
    let mut turn = session.generate(spec).await?;
    while let Some(step) = turn.next().await {
        step?;
    }
    Ok(())
}
