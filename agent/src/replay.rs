//! Replay of a recorded episode, token by token.

use std::time::Instant;

use waymark_engine::{Generate, Origin, Token};
use waymark_models::sampler::SamplingParams;

use super::AgentError;
use super::episode::Episode;
use super::generator::{Generator, SessionSource, Steps};
use super::hidden_evidence::HiddenEvidence;
use super::search::{SearchError, SearchQuery};
use super::trajectory::SearchRecord;

/// Result of replaying a recorded episode.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayedEpisode {
    /// Prompt as rendered from the question now.
    pub prompt: Vec<u32>,
    /// The recorded tokens, with the current log-probabilities of the sampled ones.
    pub tokens: Vec<Token>,
    /// Current results of the recorded searches, without those answered from the episode's memory.
    pub evidence: Vec<SearchRecord>,
}

impl<S: SessionSource> Episode<S> {
    /// Replays the `tokens` of a recorded episode of the same question instead of sampling. Given tokens are appended
    /// again; sampled ones are computed step by step and scored. The searches in `evidence` are repeated in the current
    /// index; their results are returned and change no token.
    ///
    /// # Errors
    /// [`AgentError::Option`] for a policy of the training variant, whose record differs from the content of its
    /// sessions; [`AgentError::Engine`] when the engine refuses or fails.
    pub async fn force(self, tokens: &[Token], evidence: &[SearchRecord]) -> Result<ReplayedEpisode, AgentError> {
        if self.policy.variant.is_training() {
            let reason =
                "cannot be `forced` for a policy of the training variant: its turns see a part of the sequence";
            return Err(AgentError::Option { field: "mode", reason });
        }
        let tokens = self.score_all(tokens, evidence).await?;
        let mut found = Vec::new();
        // A search that the episode answered itself was never executed, so there is nothing to repeat.
        for then in evidence.iter().filter(|found| !found.cached) {
            found.push(self.search_again(then).await);
        }
        Ok(ReplayedEpisode { prompt: self.prompt, tokens, evidence: found })
    }

    /// Scores the sampled tokens among `tokens`, each in the context that the policy saw. Returns all tokens.
    async fn score_all(&self, tokens: &[Token], evidence: &[SearchRecord]) -> Result<Vec<Token>, AgentError> {
        let mut hidden: Vec<HiddenEvidence> = evidence.iter().filter_map(|found| found.hidden).collect();
        hidden.sort_by_key(|hidden| hidden.from);
        let options = self.settings.session(&self.policy);
        let mut session = self.runtime.engine.open(options);
        let mut scored: Vec<Token> = Vec::with_capacity(tokens.len());
        for (place, hidden_next) in (0..).zip(hidden.iter().map(Some).chain([None])) {
            let end = hidden_next.map_or(tokens.len(), |next| next.from.clamp(scored.len(), tokens.len()));
            let before = session.tokens().len();
            replay(&mut session, &tokens[scored.len()..end]).await?;
            scored.extend_from_slice(&session.tokens()[before..]);
            let Some(next) = hidden_next else { break };
            let earlier = hidden[..place].iter().filter(|other| other.first < next.first);
            let kept = next.first.saturating_sub(earlier.map(|other| other.tokens).sum());
            let rest = session.tokens().get(kept.saturating_add(next.tokens)..).unwrap_or_default().to_vec();
            session = self.runtime.engine.shorten(session, kept, options);
            session.append_all(&rest);
        }
        Ok(scored)
    }

    async fn search_again(&self, then: &SearchRecord) -> SearchRecord {
        let began = Instant::now();
        let wanted = self.settings.query(&then.query, &then.entities, then.mode);
        let query = SearchQuery { tenant: self.settings.tenant, ..SearchQuery::from(wanted) };
        let result = match &self.runtime.searcher {
            Some(searcher) => searcher.search(query).await,
            None => Err(SearchError::Failed("no index is loaded".to_owned())),
        };
        let result = result.map(|found| self.settings.permitted(found));
        let asked = SearchRecord::asked(then.turn, then.query.clone(), then.entities.clone(), then.mode);
        let mut record = asked.with_result(result, began.elapsed());
        // A record that was cut is compared as far as it goes.
        if then.cut.is_some() {
            record.hits.truncate(then.hits.len());
            record.triples.truncate(then.triples.len());
        }
        // The withdrawal is part of the tokens, which the replay does not change.
        SearchRecord { cut: then.cut, withdrawn: then.withdrawn, hidden: then.hidden, ..record }
    }
}

/// Appends given tokens and scores sampled ones, each run of them as one forced generation.
async fn replay(session: &mut impl Generator, tokens: &[Token]) -> Result<(), AgentError> {
    for run in tokens.chunk_by(|a, b| (a.origin, a.forced) == (b.origin, b.forced)) {
        let ids: Vec<u32> = run.iter().map(|token| token.id).collect();
        match run[0] {
            Token { origin: Origin::Policy, forced: false, .. } => score(session, ids).await?,
            Token { origin, forced, .. } => session.append(&ids, origin, forced),
        }
    }
    Ok(())
}

/// Scores `ids` as if the session had sampled them.
async fn score(session: &mut impl Generator, ids: Vec<u32>) -> Result<(), AgentError> {
    let sampling = SamplingParams::greedy();
    // A recorded end-of-sequence token must not end the replay.
    let spec = Generate { sampling, max_tokens: ids.len(), force: ids, ignore_eos: true, ..Generate::default() };
    let mut turn = session.generate(spec).await?;
    while let Some(step) = turn.next().await {
        step?;
    }
    Ok(())
}
